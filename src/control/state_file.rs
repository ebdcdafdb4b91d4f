//! The state file: what the trie believes, kept from one run of the router to the next.
//!
//! A file that cannot be used is left alone and said in one line; the router then begins with an empty trie, as without one.
//! Invariant: the file is whole at every moment. It is written beside its place, made durable, and then moved there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::plane::Plane;
use super::state;
use crate::prompt::HashSeed;

const BUFFER_BYTES: usize = 256 << 10;

/// Checks at the start what would fail at the end.
///
/// # Errors
/// One line that names the path and what to do.
pub fn check(path: &Path) -> Result<(), String> {
    let folder = folder(path);
    match fs::metadata(folder) {
        Ok(found) if found.is_dir() && !path.is_dir() => Ok(()),
        Ok(_) => Err(format!("--state-file {}: write the path of a file in a folder", path.display())),
        Err(error) => Err(format!("--state-file {}: {}: {error}", path.display(), folder.display())),
    }
}

/// The seed by which the last run hashed prompts, if it left any that this one can use.
pub fn seed(path: &Path, chunk_bytes: usize) -> Option<HashSeed> {
    state::read_seed(File::open(path).ok()?, chunk_bytes).ok()
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Takes in what the last run left. To be called when the backends have their slots.
pub(super) fn load(plane: &Arc<Plane>, path: &Path) {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            tracing::info!("state file {}: none yet, it is written at the end", path.display());
            return;
        }
        Err(error) => {
            tracing::warn!("state file {} is ignored: {error}", path.display());
            return;
        }
    };
    match plane.restore(BufReader::with_capacity(BUFFER_BYTES, file)) {
        Ok(restored) => tracing::info!(
            "state file {}: {} runs of {} backends are known again",
            path.display(),
            restored.runs,
            restored.backends.len()
        ),
        Err(why) => tracing::warn!("state file {} is ignored: {why}", path.display()),
    }
}

/// Leaves to the next run what the trie believes.
pub(super) fn save(plane: &Plane, path: &Path) {
    match write(plane, path) {
        Ok(bytes) => tracing::info!("state file {}: {bytes} bytes are written", path.display()),
        Err(error) => tracing::error!("state file {} is not written: {error}", path.display()),
    }
}

fn write(plane: &Plane, path: &Path) -> io::Result<u64> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, file);
    let bytes = plane.save(&mut out)?;
    out.into_inner()?.sync_all()?;
    fs::rename(&beside, path)?;
    File::open(folder(path))?.sync_all()?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::engine_stats::EngineStats;
    use crate::control::testing::{quiet_plane, shared};
    use crate::trie::{Holder, Matches};

    const KEY: [u64; 3] = [11, 22, 33];

    fn believed(plane: &Plane) -> u32 {
        let mut found = Matches::new(plane.shared.fleet.slots());
        plane.shared.trie.lookup(&KEY, &mut found);
        found.chunks(0)
    }

    /// A state of one backend whose engine started at second 5.
    fn saved() -> Vec<u8> {
        let plane = quiet_plane("--static-backends http://a:1 --static-models m");
        plane.record_scrape(0, Some(EngineStats::parse("process_start_time_seconds 5\n")));
        plane.shared.trie.insert(&KEY, Holder { slot: 0, generation: plane.shared.trie.generation(0) });
        let mut bytes = Vec::new();
        plane.save(&mut bytes).expect("written");
        bytes
    }

    #[tokio::test]
    async fn pods_that_another_process_knew_are_assumed_until_there_are_others() {
        let plane = Arc::new(Plane::new(shared("--static-backends http://a:1")));
        let known = |urls: &[&str]| -> Vec<state::Known> {
            urls.iter().map(|url| state::Known { slot: 7, url: (*url).to_owned(), start_s: None }).collect()
        };
        let names = || plane.members().iter().map(|member| member.name.clone()).collect::<Vec<_>>();
        plane.assume(&known(&["http://10.0.0.1:8000", "not a URL", "http://10.0.0.2:8000"]));
        assert_eq!(names(), ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]);
        plane.assume(&known(&["http://10.0.0.3:8000"]));
        assert_eq!(names().len(), 2);
    }

    #[test]
    fn an_engine_that_restarted_meanwhile_has_lost_its_prefixes_and_one_that_did_not_keeps_them() {
        for (now, chunks) in [("process_start_time_seconds 5\n", 3), ("process_start_time_seconds 6\n", 0), ("", 3)] {
            let plane = Arc::new(quiet_plane("--static-backends http://a:1 --static-models m"));
            assert_eq!(plane.restore(&saved()[..]).expect("valid").runs, 1);
            assert_eq!(believed(&plane), 3);
            plane.record_scrape(0, Some(EngineStats::parse(now)));
            assert_eq!(believed(&plane), chunks, "{now}");
        }
    }
}
