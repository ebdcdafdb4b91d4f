//! What the service manager is told (`sd_notify(3)`): datagrams to the socket that `$NOTIFY_SOCKET` names, if there is one.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Tells one or more `KEY=value` lines.
pub(super) fn notify(state: &str) {
    let Ok(name) = std::env::var("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&name, state) {
        tracing::warn!("NOTIFY_SOCKET {name}: {error}");
    }
}

fn send(name: &str, state: &str) -> std::io::Result<()> {
    let address = match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}
