//! Which CPU each worker runs on.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::config::Pin;

/// A CPU for each worker, or none: then the kernel's scheduler moves them.
///
/// # Errors
/// One line, when a CPU is asked for that this process may not use.
pub(super) fn plan(pin: &Pin, workers: usize) -> Result<Option<Vec<usize>>, String> {
    let allowed = allowed();
    match pin {
        Pin::None => Ok(None),
        // With fewer workers than CPUs, another process that pins by the same rule would share the first of them while the
        // rest idle.
        Pin::Auto => Ok(Some(allowed).filter(|allowed| allowed.len() == workers)),
        Pin::Cpus(cpus) => match cpus.iter().find(|cpu| !allowed.contains(cpu)) {
            Some(cpu) => Err(format!("--pin: CPU {cpu} is not one that this process may use: {allowed:?}")),
            None => Ok(Some(cpus.clone())),
        },
    }
}

/// Binds the calling thread to `cpu`. It is no fault if the CPU was taken away meanwhile.
pub(super) fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    let _ = sched_setaffinity(None, &set);
}

/// The CPUs of this process's mask, which container runtimes and taskset set.
fn allowed() -> Vec<usize> {
    sched_getaffinity(None)
        .map_or_else(|_| Vec::new(), |set| (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_get_the_cpus_of_the_mask_or_those_that_were_named() {
        let cpus = allowed();
        assert!(!cpus.is_empty());
        assert_eq!(plan(&Pin::None, cpus.len()), Ok(None));
        assert_eq!(plan(&Pin::Auto, cpus.len()), Ok(Some(cpus.clone())));
        assert_eq!(plan(&Pin::Auto, cpus.len() + 1), Ok(None));
        assert_eq!(plan(&Pin::Cpus(vec![cpus[0]]), 1), Ok(Some(vec![cpus[0]])));
        assert!(plan(&Pin::Cpus(vec![1023]), 1).is_err_and(|line| line.contains("1023")));
    }

    #[test]
    fn a_pinned_thread_runs_on_its_cpu() {
        let last = *allowed().last().expect("one");
        let seen = std::thread::spawn(move || {
            pin(last);
            allowed()
        });
        assert_eq!(seen.join().expect("ends"), [last]);
    }
}
