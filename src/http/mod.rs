//! Bytes of HTTP/1.1 to values and back; pure.
