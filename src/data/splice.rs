//! A large body of known length from one socket to another without a copy: `splice(2)` through a pipe of the pool.
//!
//! Must not know: HTTP. Whoever calls has sent what came before.
//!
//! Invariants: never more than the body's remaining bytes leave the source, so that what follows them stays there; only an
//! empty pipe is filled, so that "would block" speaks of the source alone; while the sink takes nothing, nothing is read.
//! (Ring splices are not used: the kernel gives each to a thread of its own.)

use std::rc::Rc;

use super::client::Client;
use super::failure::Failure;
use super::pipes::{Pipe, SIZE};
use super::socket::{Got, Socket};
use crate::config::SpliceMode;
use crate::metrics::shard::{ErrorKind, Lane};

/// Bytes that must remain: below, the two extra calls cost more than the copy.
pub(super) const WORTHWHILE: u64 = 128 << 10;

/// Carries what remains of an answer's body to the client. False: there is no pipe, and nothing was carried.
pub(super) async fn to_client(
    client: &mut Client,
    upstream: &mut Socket,
    remaining: u64,
    lane: Option<&Lane>,
) -> Result<bool, Failure> {
    if remaining < WORTHWHILE || client.worker.shared.config.splice == SpliceMode::Never {
        return Ok(false);
    }
    let worker = Rc::clone(&client.worker);
    let Some(mut pipe) = Pipe::take(&worker) else { return Ok(false) };
    let mut remaining = remaining;
    while remaining > 0 {
        let most = usize::try_from(remaining).map_or(SIZE, |remaining| remaining.min(SIZE));
        fill(client, upstream, &mut pipe, most).await?;
        let carried = pipe.held() as u64;
        drain(client, &mut pipe).await?;
        remaining -= carried;
        worker.shard().spliced_bytes.add(carried);
        if let Some(lane) = lane {
            lane.response_bytes.add(carried);
        }
    }
    Ok(true)
}

/// Waits for the backend's next bytes and moves them into the empty pipe, with an eye on the client.
async fn fill(client: &mut Client, upstream: &mut Socket, pipe: &mut Pipe, most: usize) -> Result<(), Failure> {
    debug_assert_eq!(pipe.held(), 0);
    loop {
        match upstream.splice_into(pipe.writes(), most) {
            Ok(Got::Bytes(n)) => {
                // From here on the client is waited for.
                upstream.no_deadline();
                pipe.filled(n);
                return Ok(());
            }
            Ok(Got::Wait) => {
                upstream.due_in(client.worker.shared.config.times.between_bytes);
                client.or_gone(upstream.readable()).await?.map_err(|_| Failure::Broken(ErrorKind::Broken))?;
            }
            Ok(Got::End) if upstream.timed_out() => return Err(Failure::Broken(ErrorKind::BetweenBytesTimeout)),
            Ok(Got::End) | Err(_) => return Err(Failure::Broken(ErrorKind::Broken)),
        }
    }
}

/// Moves all that the pipe holds to the client.
async fn drain(client: &mut Client, pipe: &mut Pipe) -> Result<(), Failure> {
    while pipe.held() > 0 {
        match client.socket.splice_from(pipe.reads(), pipe.held()) {
            Ok(Some(n)) => pipe.emptied(n),
            Ok(None) => client.takes_more().await?,
            Err(_) => return Err(Failure::ClientGone),
        }
    }
    Ok(())
}
