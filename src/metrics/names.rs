//! Every metric's name, once. Dashboards and documents are held against this list.
