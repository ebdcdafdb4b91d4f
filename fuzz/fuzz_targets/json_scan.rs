//! The body's scan: an object to it is one to `serde_json`, and the key of each endpoint is that of the naive twin.
#![no_main]

#[path = "../../tests/prompt_oracle/mod.rs"]
mod prompt_oracle;

use libfuzzer_sys::fuzz_target;
use trieway::prompt::{Chunks, Scan, key, UNKEYED};

/// The smallest chunks, which show most of the key, and those that have a hash of their own.
const CHUNK_BYTES: [usize; 2] = [16, 128];
const SEED: u64 = 7;

fuzz_target!(|body: &[u8]| {
    let mut scan = Scan::default();
    let read = scan.read(body).is_ok();
    assert_eq!(read, prompt_oracle::is_object(&prompt_oracle::strict(body)), "{}", body.escape_ascii());
    for endpoint in prompt_oracle::ENDPOINTS {
        // What serde_json reads less of (names with a lone surrogate, bytes that are no UTF-8) is compared no further.
        let text = str::from_utf8(body).ok().filter(|text| prompt_oracle::is_object(text));
        let canonical = text.map(|text| prompt_oracle::canonical(endpoint, text));
        for chunk_bytes in CHUNK_BYTES {
            let mut chunks = Chunks::new(chunk_bytes, &UNKEYED);
            chunks.start(SEED);
            key(endpoint, &scan, body, &mut chunks);
            match &canonical {
                Some(Ok(bytes)) if read => {
                    assert_eq!(chunks.key(), prompt_oracle::chunked(SEED, bytes, chunk_bytes), "{endpoint:?}");
                }
                _ => {}
            }
        }
    }
});
