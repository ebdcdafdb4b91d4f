//! What the kernel says of this process and its threads.

use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Clock ticks a second in `/proc`: the kernel's USER_HZ, 100 on every architecture that this program is built for.
const TICKS_PER_SECOND: f64 = 100.0;
/// Fields of a `stat` line after the command's closing parenthesis: user and system time.
const UTIME_FIELD: usize = 11;

const DESCRIPTORS: &str = "/proc/self/fd";
/// Between two counts of the descriptors where the kernel does not tell their number.
const COUNT_EVERY: Duration = Duration::from_secs(5);

/// CPU time of a thread of this process.
pub(super) fn thread_cpu_seconds(thread_id: i32) -> Option<f64> {
    cpu_seconds(&fs::read_to_string(format!("/proc/self/task/{thread_id}/stat")).ok()?)
}

/// CPU time of the whole process.
pub(super) fn process_cpu_seconds() -> Option<f64> {
    cpu_seconds(&fs::read_to_string("/proc/self/stat").ok()?)
}

pub(super) fn resident_bytes() -> Option<u64> {
    resident(&fs::read_to_string("/proc/self/status").ok()?)
}

/// How many descriptors are open. Since Linux 6.2 the directory's size says so. Before that they are counted, which takes
/// milliseconds when there are thousands of them: at most once in [`COUNT_EVERY`].
pub(super) fn open_descriptors() -> Option<usize> {
    static COUNTED: Mutex<Option<(Instant, usize)>> = Mutex::new(None);
    match fs::metadata(DESCRIPTORS).ok()?.len() {
        0 => {}
        open => return usize::try_from(open).ok(),
    }
    let mut counted = COUNTED.lock().unwrap_or_else(PoisonError::into_inner);
    if counted.is_none_or(|(at, _)| at.elapsed() >= COUNT_EVERY) {
        *counted = Some((Instant::now(), count_descriptors()?));
    }
    counted.map(|(_, open)| open)
}

fn count_descriptors() -> Option<usize> {
    // One of them is the directory that is being read.
    fs::read_dir(DESCRIPTORS).ok().map(|entries| entries.count().saturating_sub(1))
}

/// The command may hold blanks and parentheses: the fields begin after the last one.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let fields = stat.rsplit_once(')')?.1;
    let mut times = fields.split_ascii_whitespace().skip(UTIME_FIELD);
    let user: u64 = times.next()?.parse().ok()?;
    let system: u64 = times.next()?.parse().ok()?;
    Some((user + system) as f64 / TICKS_PER_SECOND)
}

fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernels_lines() {
        let stat = "7 (a) b) c) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 3 0 100 1000 10";
        assert_eq!(cpu_seconds(stat), Some(3.0));
        assert_eq!(cpu_seconds("7 (a) S 1"), None);
        assert_eq!(resident("Name:\tx\nVmRSS:\t    2048 kB\n"), Some(2 << 20));
    }

    #[test]
    fn this_process_has_figures() {
        assert!(process_cpu_seconds().is_some() && thread_cpu_seconds(std::process::id() as i32).is_some());
        assert!(resident_bytes().is_some_and(|bytes| bytes > 100_000));
        assert!(open_descriptors().is_some_and(|open| open >= 3));
        assert!(count_descriptors().is_some_and(|open| open >= 3));
    }
}
