//! Request body to prompt key; pure.
