//! One client connection from its accept to its end: request after request, and small while it waits.

use std::any::Any;
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
pub(super) async fn serve(counted: Counted, worker: Rc<Worker>, socket: Socket, address: String) {
    let shard = worker.shard();
    if (CatchUnwind { inner: requests(worker, socket, address) }).await.is_err() {
        shard.panics.add(1);
    }
    drop(counted);
}

async fn requests(worker: Rc<Worker>, socket: Socket, address: String) {
    let times = &worker.shared.config.times;
    let mut client = Client::new(Rc::clone(&worker), socket, address);
    let mut limit = times.client_head;
    while client.wait_for_request(limit).await {
        let after;
        (client, after) = worker.turns.serve(client).await;
        match after {
            After::KeepAlive => limit = times.client_idle,
            After::Gone => break,
            After::Close => {
                client.linger(LINGER_ANSWERED).await;
                break;
            }
            After::Refused => {
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

pin_project_lite::pin_project! {
    struct CatchUnwind<F> {
        #[pin]
        inner: F,
    }
}

impl<F: Future> Future for CatchUnwind<F> {
    type Output = Result<F::Output, Box<dyn Any + Send>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let inner = self.project().inner;
        match catch_unwind(AssertUnwindSafe(|| inner.poll(cx))) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    }
}
