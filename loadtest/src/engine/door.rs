//! An engine's listening socket.

use std::io;
use std::net::SocketAddr;

use mio::net::TcpListener;

const BACKLOG: i32 = 4096;
/// So few that the backlog is soon full, and SYNs are dropped.
const DEAF_BACKLOG: i32 = 1;

/// An engine's listening address, and its listener while it has one.
#[derive(Debug)]
pub(crate) struct Door {
    address: SocketAddr,
    pub(crate) listener: Option<TcpListener>,
    /// It listens and never accepts.
    pub(crate) deaf: bool,
}

impl Door {
    pub(crate) fn open(address: SocketAddr) -> io::Result<Self> {
        let listener = listen(address, BACKLOG)?;
        Ok(Self { address: listener.local_addr()?, listener: Some(listener), deaf: false })
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Listens again, or in another way; Some: there is a listener that the queue does not know yet.
    pub(crate) fn reopen(&mut self, deaf: bool) -> io::Result<Option<&mut TcpListener>> {
        if self.listener.is_some() && self.deaf == deaf {
            return Ok(None);
        }
        // The old one would hold the address.
        self.listener = None;
        let backlog = if deaf { DEAF_BACKLOG } else { BACKLOG };
        self.deaf = deaf;
        Ok(Some(self.listener.insert(listen(self.address, backlog)?)))
    }
}

fn listen(address: SocketAddr, backlog: i32) -> io::Result<TcpListener> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(backlog)?;
    Ok(TcpListener::from_std(socket.into()))
}
