//! Pages that cost something to write out, such as `/metrics`: shared by all who ask at the same time.
//!
//! Invariants: a page is written out after it was asked for, so nobody is shown what was true before; it is written out at
//! most once at a time, and the pauses in between are so long that it takes at most a tenth of a thread, however many ask.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::plane::Plane;

/// Least time between two renderings of a page.
const APART: Duration = Duration::from_millis(20);
/// The pause after a rendering, as a multiple of the time that it took.
const REST: u32 = 9;

pub(super) struct Page {
    write: fn(&Plane) -> String,
    asking: Mutex<Vec<oneshot::Sender<Bytes>>>,
    asked: Notify,
}

impl Page {
    /// Starts what writes the page out. To be called within the runtime.
    pub(super) fn new(plane: &Arc<Plane>, write: fn(&Plane) -> String) -> Arc<Self> {
        let page = Arc::new(Page { write, asking: Mutex::default(), asked: Notify::new() });
        tokio::spawn(page.clone().run(plane.clone()));
        page
    }

    /// The page as it is now or a moment later; `None` when it could not be written out.
    pub(super) async fn text(&self) -> Option<Bytes> {
        let (sender, receiver) = oneshot::channel();
        self.asking().push(sender);
        self.asked.notify_one();
        receiver.await.ok()
    }

    async fn run(self: Arc<Self>, plane: Arc<Plane>) {
        loop {
            self.asked.notified().await;
            let asking = std::mem::take(&mut *self.asking());
            if asking.iter().all(oneshot::Sender::is_closed) {
                continue;
            }
            let began = Instant::now();
            plane.renders.fetch_add(1, Relaxed);
            // Who asks for a page that cannot be written out is told so, and the next one is tried again.
            if let Ok(text) = catch_unwind(AssertUnwindSafe(|| (self.write)(&plane))) {
                let text = Bytes::from(text);
                for one in asking {
                    // An error: whoever asked has gone.
                    let _ = one.send(text.clone());
                }
            }
            let ended = Instant::now();
            tokio::time::sleep_until((ended + REST * (ended - began)).max(began + APART)).await;
        }
    }

    fn asking(&self) -> std::sync::MutexGuard<'_, Vec<oneshot::Sender<Bytes>>> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::testing::quiet_plane;

    #[tokio::test]
    async fn all_who_ask_at_the_same_time_share_one_rendering() {
        let plane = Arc::new(quiet_plane("--static-backends http://127.0.0.1:1 --static-models m"));
        let page = Page::new(&plane, |plane| plane.renders.load(Relaxed).to_string());
        let ask = || {
            let page = page.clone();
            tokio::spawn(async move { page.text().await })
        };
        let first = Instant::now();
        for round in 1..=10_u32 {
            let asked: Vec<_> = (0..200).map(|_| ask()).collect();
            for one in asked {
                assert_eq!(one.await.expect("no panic").as_deref(), Some(round.to_string().as_bytes()));
            }
        }
        assert!(first.elapsed() >= 9 * APART, "{:?}", first.elapsed());
        assert_eq!(plane.renders.load(Relaxed), 10);
    }

    #[tokio::test]
    async fn a_page_that_fails_is_tried_again() {
        let plane = Arc::new(quiet_plane("--static-backends http://127.0.0.1:1 --static-models m"));
        let page = Page::new(&plane, |plane| {
            assert!(plane.renders.load(Relaxed) > 1, "the first one fails");
            "text".to_owned()
        });
        assert_eq!(page.text().await, None);
        assert_eq!(page.text().await.as_deref(), Some(&b"text"[..]));
    }
}
