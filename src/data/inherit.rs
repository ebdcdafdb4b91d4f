//! Listening sockets that another process opened: the router that this one takes over from, or systemd.
//!
//! The kernel keeps a socket's accept queue as long as any process has the socket, so whoever waits there waits for whichever
//! process accepts next: nobody is refused while one router follows the other.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use socket2::Socket;

use super::accept::Listeners;
use crate::config::HANDOVER_VARIABLE;

/// The first descriptor that systemd passes (`sd_listen_fds(3)`).
const SYSTEMD_FIRST: RawFd = 3;

/// The listening sockets that the environment names, dealt out to `workers`; `None`: it names none. To be called once, before
/// the process opens any descriptor of its own.
///
/// # Errors
/// One line, when the environment names something else than listening sockets.
pub fn inherited(workers: usize) -> Result<Option<Listeners>, String> {
    let (variable, descriptors) = match (std::env::var(HANDOVER_VARIABLE), systemd_count()) {
        (Ok(list), _) => (HANDOVER_VARIABLE, descriptors(&list)?),
        (Err(_), Some(count)) => ("LISTEN_FDS", (SYSTEMD_FIRST..SYSTEMD_FIRST + count).collect()),
        (Err(_), None) => return Ok(None),
    };
    let sockets = descriptors.into_iter().map(adopt).collect::<Result<Vec<_>, _>>();
    let sockets = sockets.map_err(|why| format!("{variable}: {why}"))?;
    let shown = sockets.first().map(shown).ok_or_else(|| format!("{variable} names no descriptor"))?;
    let sockets = deal(sockets, workers).map_err(|error| format!("{variable}: {error}"))?;
    Ok(Some(Listeners { sockets, shown }))
}

/// How many sockets systemd has passed to this very process.
fn systemd_count() -> Option<RawFd> {
    let number = |name| std::env::var(name).ok()?.parse::<u32>().ok();
    let count = number("LISTEN_FDS").filter(|count| (1..1024).contains(count))?;
    (number("LISTEN_PID") == Some(std::process::id())).then_some(count as RawFd)
}

fn descriptors(list: &str) -> Result<Vec<RawFd>, String> {
    let one = |word: &str| word.parse().ok().filter(|fd| *fd >= SYSTEMD_FIRST);
    let bad = || format!("{HANDOVER_VARIABLE}: '{list}' is not a list of descriptors");
    list.split(',').map(|word| one(word).ok_or_else(bad)).collect()
}

fn adopt(fd: RawFd) -> Result<Socket, String> {
    // A descriptor that is not there would be somebody else's once the process opens one.
    std::fs::read_link(format!("/proc/self/fd/{fd}")).map_err(|_| format!("descriptor {fd} is not open"))?;
    // SAFETY: the descriptor is open, whoever started this process says that it is for it, and nothing else here owns it:
    // the process has opened none yet.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let socket = Socket::from(fd);
    let ready =
        socket.set_cloexec(true).and_then(|()| socket.set_nonblocking(true)).and_then(|()| socket.is_listener());
    match ready {
        Ok(true) => Ok(socket),
        Ok(false) => Err("a socket that does not listen".to_owned()),
        Err(error) => Err(format!("a descriptor that is no socket: {error}")),
    }
}

/// Gives each worker its sockets: none is left out, since its queue would be lost, and no worker goes without.
fn deal(sockets: Vec<Socket>, workers: usize) -> std::io::Result<Vec<Vec<Socket>>> {
    let mut dealt: Vec<Vec<Socket>> = (0..workers).map(|_| Vec::new()).collect();
    let count = sockets.len();
    for (at, socket) in sockets.into_iter().enumerate() {
        // A worker beyond the sockets shares one with another worker.
        for worker in (at + count..workers).step_by(count) {
            dealt[worker].push(socket.try_clone()?);
        }
        dealt[at % workers].push(socket);
    }
    Ok(dealt)
}

fn shown(socket: &Socket) -> String {
    let address = socket.local_addr().ok();
    if let Some(address) = address.as_ref().and_then(socket2::SockAddr::as_socket) {
        return format!("http://{address}");
    }
    let path = address.as_ref().and_then(socket2::SockAddr::as_pathname);
    path.map_or_else(|| "an inherited socket".to_owned(), |path| format!("unix:{}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn listening(count: usize) -> Vec<Socket> {
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0").expect("binds").into()).collect()
    }

    #[test]
    fn every_socket_has_a_worker_and_every_worker_a_socket() {
        for (sockets, workers) in [(1, 1), (1, 4), (2, 3), (3, 2), (4, 4), (7, 2), (2, 7)] {
            let sockets = listening(sockets);
            let addresses: Vec<_> = sockets.iter().map(shown).collect();
            let dealt = deal(sockets, workers).expect("dealt");
            assert!(dealt.len() == workers && dealt.iter().all(|own| !own.is_empty()), "{workers} workers");
            let seen: Vec<_> = dealt.iter().flatten().map(shown).collect();
            assert!(addresses.iter().all(|address| seen.contains(address)));
            assert_eq!(seen.len(), addresses.len().max(workers));
        }
    }

    #[test]
    fn lists_are_descriptors_beyond_the_standard_ones() {
        assert_eq!(descriptors("7,12"), Ok(vec![7, 12]));
        for bad in ["", "x", "7,", "0", "2,7", "-1"] {
            assert!(descriptors(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_does_not_listen_is_refused() {
        assert!(adopt(1 << 20).is_err_and(|why| why.contains("is not open")));
        let file = std::fs::File::open("/dev/null").expect("opens");
        assert!(adopt(std::os::fd::IntoRawFd::into_raw_fd(file)).is_err_and(|why| why.contains("no socket")));
        let silent = Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
        assert!(adopt(std::os::fd::IntoRawFd::into_raw_fd(silent)).is_err_and(|why| why.contains("does not listen")));
    }
}
