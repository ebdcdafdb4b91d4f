//! The unix socket on which the workers reach the control plane.
//!
//! It stands in the abstract namespace, so there is no file to leave behind, and its name cannot be guessed. Every process
//! of the network namespace can see that namespace, so a peer that is another process is turned away.

use std::fmt::Write;
use std::fs::File;
use std::io::{self, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net as std_net;
use std::time::Duration;

use axum::serve::Listener;
use tokio::net::{UnixListener, UnixStream};

/// How long to wait after a failed accept: out of descriptors, it would fail again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub(super) struct AdminSocket {
    listener: UnixListener,
}

impl AdminSocket {
    /// Binds under a random name and returns that name. To be called within the runtime.
    pub(super) fn bind() -> io::Result<(AdminSocket, String)> {
        let name = random_name()?;
        let address = std_net::SocketAddr::from_abstract_name(&name)?;
        let listener = std_net::UnixListener::bind_addr(&address)?;
        listener.set_nonblocking(true)?;
        Ok((AdminSocket { listener: UnixListener::from_std(listener)? }, name))
    }
}

impl Listener for AdminSocket {
    type Io = UnixStream;
    type Addr = ();

    async fn accept(&mut self) -> (UnixStream, ()) {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) if is_this_process(&stream) => return (stream, ()),
                Ok(_) => tracing::warn!("another process connected to the control socket and was turned away"),
                Err(error) => {
                    tracing::warn!("control socket: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<()> {
        Ok(())
    }
}

fn is_this_process(stream: &UnixStream) -> bool {
    let peer = stream.peer_cred().ok().and_then(|credentials| credentials.pid());
    peer.and_then(|pid| u32::try_from(pid).ok()) == Some(std::process::id())
}

/// 128 random bits in hexadecimal.
fn random_name() -> io::Result<String> {
    let mut bits = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bits)?;
    Ok(bits.iter().fold("trieway-".to_owned(), |mut name, byte| {
        // Writing to a string cannot fail.
        let _ = write!(name, "{byte:02x}");
        name
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn this_process_is_let_in() {
        let (mut socket, name) = AdminSocket::bind().expect("binds");
        let address = std_net::SocketAddr::from_abstract_name(&name).expect("a name");
        let _own = std_net::UnixStream::connect_addr(&address).expect("it listens");
        tokio::time::timeout(Duration::from_secs(1), socket.accept()).await.expect("is let in");
    }

    #[test]
    fn names_cannot_be_guessed() {
        let (a, b) = (random_name().expect("random"), random_name().expect("random"));
        assert_ne!(a, b);
        assert_eq!(a.len(), "trieway-".len() + 32);
    }
}
