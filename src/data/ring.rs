//! How the workers wait: io_uring with the best flags that this kernel has, or epoll.
//!
//! Chosen once for the whole process, by trying with rings of the real size and number, so that no worker fails or
//! differs later. The plain ring is left out of the automatic choice: with readiness polls it costs twice what epoll does.

use std::fmt;
use std::future::Future;
use std::io;

use io_uring::IoUring;
use monoio::time::TimeDriver;
use monoio::{IoUringDriver, LegacyDriver, RuntimeBuilder};

use crate::config::IoMode;

/// Entries of a worker's submission queue.
const ENTRIES: u32 = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// `SINGLE_ISSUER | DEFER_TASKRUN | SUBMIT_ALL`, Linux 6.1.
    UringDeferred,
    /// `COOP_TASKRUN | SUBMIT_ALL`, Linux 5.19.
    UringCooperative,
    /// No flags.
    UringPlain,
    Epoll,
}

impl Driver {
    /// For the start line, metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Driver::UringDeferred => "io_uring (defer_taskrun)",
            Driver::UringCooperative => "io_uring (coop_taskrun)",
            Driver::UringPlain => "io_uring (plain)",
            Driver::Epoll => "epoll",
        }
    }

    fn builder(self) -> io_uring::Builder {
        let mut builder = IoUring::builder();
        match self {
            Driver::UringDeferred => builder.setup_single_issuer().setup_defer_taskrun().setup_submit_all(),
            Driver::UringCooperative => builder.setup_coop_taskrun().setup_submit_all(),
            Driver::UringPlain | Driver::Epoll => &mut builder,
        };
        builder
    }

    /// Whether `workers` rings can be had at the same time.
    ///
    /// On a thread of its own: when a ring has been closed, the kernel signals its maker some time later, and whatever call
    /// that thread waits in then may end with `EINTR`.
    fn try_out(self, workers: usize) -> io::Result<()> {
        let rings =
            move || (0..workers).map(|_| self.builder().build(ENTRIES)).collect::<io::Result<Vec<_>>>().map(drop);
        let tried = std::thread::Builder::new().name("try-io_uring".to_owned()).spawn(rings)?.join();
        tried.unwrap_or_else(|_| Err(io::Error::other("trying it panicked")))
    }

    /// Runs `future` on this thread, on a runtime of this kind; `ready` tells whether it could be made.
    pub(super) fn block_on<F: Future<Output = ()>>(
        self,
        ready: impl FnOnce(io::Result<()>),
        future: impl FnOnce() -> F,
    ) {
        if self == Driver::Epoll {
            match RuntimeBuilder::<TimeDriver<LegacyDriver>>::build(
                RuntimeBuilder::<LegacyDriver>::new().enable_timer(),
            ) {
                Ok(mut runtime) => {
                    ready(Ok(()));
                    runtime.block_on(future());
                }
                Err(error) => ready(Err(error)),
            }
        } else {
            let builder = RuntimeBuilder::<IoUringDriver>::new()
                .with_entries(ENTRIES)
                .uring_builder(self.builder())
                .enable_timer();
            match RuntimeBuilder::<TimeDriver<IoUringDriver>>::build(builder) {
                Ok(mut runtime) => {
                    ready(Ok(()));
                    runtime.block_on(future());
                }
                Err(error) => ready(Err(error)),
            }
        }
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The driver for `mode`, and why io_uring is not used if it could have been.
///
/// # Errors
/// One line, when io_uring is demanded and cannot be had.
pub fn pick(mode: IoMode, workers: usize) -> Result<(Driver, Option<String>), String> {
    if mode == IoMode::Epoll {
        return Ok((Driver::Epoll, None));
    }
    let error = match Driver::UringDeferred.try_out(workers) {
        Ok(()) => return Ok((Driver::UringDeferred, None)),
        Err(error) => error,
    };
    if Driver::UringCooperative.try_out(workers).is_ok() {
        return Ok((Driver::UringCooperative, None));
    }
    if mode == IoMode::Uring && Driver::UringPlain.try_out(workers).is_ok() {
        return Ok((Driver::UringPlain, None));
    }
    let why = explain(&error, workers);
    match mode {
        IoMode::Uring => Err(format!("--io uring: {why}; or use --io epoll")),
        IoMode::Auto | IoMode::Epoll => Ok((Driver::Epoll, Some(why))),
    }
}

fn explain(error: &io::Error, workers: usize) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM) => {
            "io_uring is not permitted: allow it in the seccomp profile, or set kernel.io_uring_disabled=0".to_owned()
        }
        Some(libc::ENOSYS) => "this kernel has no io_uring".to_owned(),
        Some(libc::ENOMEM) => format!(
            "no memory for {workers} rings of {ENTRIES} entries: raise the memlock limit (ulimit -l), or use fewer --workers"
        ),
        Some(libc::EMFILE | libc::ENFILE) => {
            format!("no descriptors left for {workers} rings: raise the limit of open files (ulimit -n)")
        }
        _ => format!("io_uring cannot be had: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::pick;
    use crate::config::IoMode;

    #[test]
    fn trying_rings_interrupts_nothing_that_its_caller_waits_for() {
        let (mut silent, _peer) = UnixStream::pair().expect("pair");
        silent.set_read_timeout(Some(Duration::from_millis(10))).expect("option");
        for _ in 0..20 {
            pick(IoMode::Auto, 2).expect("a driver");
            assert_eq!(silent.read(&mut [0]).expect_err("nothing was sent").kind(), ErrorKind::WouldBlock);
        }
    }
}
