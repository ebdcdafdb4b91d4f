//! Memory for running requests, reused.
//!
//! The state of a running request is many times that of a waiting connection, so it lives in a box of its own, and a
//! connection that waits has none. The boxes come from the worker's store: a request in the steady state allocates nothing.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::client::Client;
use super::exchange::{After, serve_one};

/// Unused boxes that a worker keeps.
const KEPT: usize = 256;

type Served = (Client, After);

/// A box that can hold one running request after another.
trait Turn {
    fn begin(self: Pin<&mut Self>, client: Client);
    fn poll_end(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Served>;
}

pin_project_lite::pin_project! {
    struct Slot<M, F> {
        make: M,
        #[pin]
        running: Option<F>,
    }
}

impl<M: Fn(Client) -> F, F: Future<Output = Served>> Turn for Slot<M, F> {
    fn begin(self: Pin<&mut Self>, client: Client) {
        let mut this = self.project();
        let future = (this.make)(client);
        this.running.set(Some(future));
    }

    fn poll_end(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Served> {
        let mut running = self.project().running;
        let served = match running.as_mut().as_pin_mut() {
            Some(future) => ready!(future.poll(cx)),
            None => return Poll::Pending,
        };
        running.set(None);
        Poll::Ready(served)
    }
}

fn new_slot() -> Pin<Box<dyn Turn>> {
    let make = |mut client: Client| async move {
        let after = serve_one(&mut client).await;
        (client, after)
    };
    Box::pin(Slot { make, running: None })
}

#[derive(Default)]
pub(super) struct Turns(RefCell<Vec<Pin<Box<dyn Turn>>>>);

impl Turns {
    /// Serves the client's next request in a box of the store.
    pub(super) fn serve(&self, client: Client) -> impl Future<Output = Served> {
        let mut slot = self.0.borrow_mut().pop().unwrap_or_else(new_slot);
        slot.as_mut().begin(client);
        async move {
            let served = poll_fn(|cx| slot.as_mut().poll_end(cx)).await;
            let mut kept = self.0.borrow_mut();
            if kept.len() < KEPT {
                kept.push(slot);
            }
            served
        }
    }
}
