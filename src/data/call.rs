//! How a request that waits is called by another task of its worker.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// What a waiting request is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// There may be room.
    Look,
    /// It has waited as long as it may.
    Expired,
}

/// Keeps the last call until it is heard.
#[derive(Default)]
pub(super) struct Bell {
    call: Cell<Option<Call>>,
    waker: Cell<Option<Waker>>,
}

impl Bell {
    pub(super) fn ring(&self, call: Call) {
        self.call.set(Some(call));
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    pub(super) async fn heard(&self) -> Call {
        poll_fn(|cx| match self.call.take() {
            Some(call) => Poll::Ready(call),
            None => {
                self.waker.set(Some(cx.waker().clone()));
                Poll::Pending
            }
        })
        .await
    }
}
