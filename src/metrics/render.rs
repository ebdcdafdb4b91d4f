//! Families of samples to Prometheus text (exposition format 0.0.4).
