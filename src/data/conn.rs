//! One client connection from its accept to its end: request after request, and small while it waits.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::client::{Client, LINGER_ANSWERED, LINGER_REFUSED};
use super::exchange::After;
use super::socket::Socket;
use super::worker::{Counted, Worker};

/// Serves the connection. A panic in its code ends this connection alone.
///
/// Nothing here is an async function: those keep each argument twice, and most connections wait most of the time.
pub(super) fn serve(counted: Counted, worker: Rc<Worker>, socket: Socket, address: String) -> impl Future<Output = ()> {
    CatchUnwind { inner: requests(Client::new(worker, socket, address)), counted }
}

#[allow(clippy::manual_async_fn, reason = "an async function would keep the client twice")]
fn requests(mut client: Client) -> impl Future<Output = ()> {
    async move {
        let mut limit = client.worker.shared.config.times.client_head;
        while client.wait_for_request(limit).await {
            let worker = Rc::clone(&client.worker);
            let after;
            (client, after) = worker.turns.serve(client).await;
            match after {
                After::KeepAlive => limit = worker.shared.config.times.client_idle,
                After::Gone => break,
                After::Close => {
                    client.input = None;
                    client.linger(LINGER_ANSWERED).await;
                    break;
                }
                After::Refused => {
                    client.input = None;
                    client.linger(LINGER_REFUSED).await;
                    break;
                }
                After::Abort => {
                    client.socket.shutdown();
                    break;
                }
            }
        }
    }
}

pin_project_lite::pin_project! {
    /// Ends when `inner` does, or when that panics.
    struct CatchUnwind<F> {
        #[pin]
        inner: F,
        counted: Counted,
    }
}

impl<F: Future<Output = ()>> Future for CatchUnwind<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        this.counted.worker().coop.begin_turn();
        catch_unwind(AssertUnwindSafe(|| this.inner.poll(cx))).unwrap_or_else(|_| {
            this.counted.worker().shard().panics.add(1);
            Poll::Ready(())
        })
    }
}
