//! How much memory the process may use: the machine's, or less where a control group says so.

use std::fs::read_to_string;
use std::path::Path;

/// What the default is where nothing can be told.
const UNKNOWN: usize = 4 << 30;

/// Bytes of all large buffers together, by default: a quarter of the memory, and at least what two of the largest bodies take.
pub(super) fn default_buffered(max_body_bytes: usize) -> usize {
    (usable().unwrap_or(UNKNOWN) / 4).max(max_body_bytes.saturating_mul(2))
}

fn usable() -> Option<usize> {
    let of_machine = read_to_string("/proc/meminfo").ok().and_then(|text| total(&text));
    let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let of_group = group_limits(&groups, Path::new("/sys/fs/cgroup"));
    of_machine.into_iter().chain(of_group).min()
}

/// `MemTotal` in bytes.
fn total(meminfo: &str) -> Option<usize> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

/// The limit of the process's control group or of one above it, whichever is the least. `groups` is as `/proc/self/cgroup`.
fn group_limits(groups: &str, root: &Path) -> Option<usize> {
    let limits = groups.lines().flat_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, group) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let (below, file) = match controllers {
            "" => (root.to_path_buf(), "memory.max"),
            _ => (root.join("memory"), "memory.limit_in_bytes"),
        };
        let memory = controllers.is_empty() || controllers.split(',').any(|name| name == "memory");
        let own = Path::new(group.trim_start_matches('/')).to_path_buf();
        let above: Vec<_> = own.ancestors().map(|group| below.join(group).join(file)).collect();
        above.into_iter().filter(move |_| memory)
    });
    // `max` is no number: no limit.
    limits.filter_map(|file| read_to_string(file).ok()?.trim().parse().ok()).min()
}

#[cfg(test)]
mod tests {
    use super::{default_buffered, group_limits, total};

    #[test]
    fn the_least_limit_above_the_process_counts() {
        let root = std::env::temp_dir().join(format!("trieway-groups-{}", std::process::id()));
        for (path, limit) in [
            ("memory.max", "max\n"),
            ("pods/memory.max", "3000000\n"),
            ("pods/one/memory.max", "max\n"),
            ("memory/old/memory.limit_in_bytes", "5000\n"),
        ] {
            let file = root.join(path);
            std::fs::create_dir_all(file.parent().expect("a folder")).expect("made");
            std::fs::write(file, limit).expect("written");
        }
        for (groups, expected) in [
            ("0::/pods/one\n", Some(3_000_000)),
            ("0::/\n", None),
            ("0::/elsewhere\n", None),
            ("12:cpu:/old\n7:hugetlb,memory:/old\n", Some(5000)),
            ("", None),
        ] {
            assert_eq!(group_limits(groups, &root), expected, "{groups:?}");
        }
        std::fs::remove_dir_all(root).expect("removed");
    }

    #[test]
    fn memory_is_read_and_the_default_takes_two_bodies() {
        assert_eq!(total("MemTotal:       2000 kB\nMemFree: 1 kB\n"), Some(2000 << 10));
        assert!(default_buffered(1 << 20) >= 2 << 20);
        assert_eq!(default_buffered(1 << 50), 2 << 50);
    }
}
