//! Doors for fuzz targets into what the control plane reads of foreign bytes. Built under `--cfg fuzzing` alone.

use std::io;

use super::state::{self, Known};
use crate::prompt::HashSeed;
use crate::trie::Trie;

/// Reads a state as at the start; `urls` are the backends that are known here, in the order of their slots. Gives the number
/// of runs.
///
/// # Errors
/// Why the bytes are of no use.
pub fn read_state(trie: &Trie, chunk_bytes: usize, limit: u64, bytes: &[u8], urls: &[&str]) -> Result<usize, String> {
    let slot = |known: &Known| urls.iter().position(|url| *url == known.url).map(|at| at as u16);
    let slots = |known: &[Known]| known.iter().map(slot).collect();
    state::read(trie, chunk_bytes, limit, bytes, |_| true, slots).map(|restored| restored.runs)
}

/// Writes what the trie believes of these backends.
///
/// # Errors
/// Those of the writer.
pub fn write_state(trie: &Trie, chunk_bytes: usize, urls: &[&str], out: &mut Vec<u8>) -> io::Result<u64> {
    let known = |(slot, url): (u16, &&str)| Known { slot, url: (*url).to_owned(), start_s: None };
    let seed = HashSeed::of_text("of a fuzz target");
    state::write(trie, chunk_bytes, &seed, &(0..).zip(urls).map(known).collect::<Vec<_>>(), out)
}
