//! The router's metrics as Prometheus text.

use super::plane::Plane;

pub(super) fn text(_plane: &Plane) -> String {
    String::new()
}
