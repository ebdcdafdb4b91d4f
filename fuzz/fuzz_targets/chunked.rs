//! The chunked decoder: the same under any split, and the same as a naive second reading.
#![no_main]

#[path = "../../tests/http_model/mod.rs"]
mod http_model;

use http_model::Chunked;
use libfuzzer_sys::fuzz_target;
use trieway::http::Limits;
use trieway::http::chunked::{ChunkError, Decoder};

type Decoded = Result<(Vec<u8>, usize, bool), ChunkError>;

fn decode(input: &[u8], piece: usize, limits: &Limits) -> Decoded {
    let mut decoder = Decoder::new(limits);
    let (mut payload, mut consumed) = (Vec::new(), 0);
    for bytes in input.chunks(piece) {
        let mut buf = bytes.to_vec();
        let step = decoder.decode(&mut buf)?;
        assert!(step.payload <= step.consumed && step.consumed <= buf.len());
        assert_eq!(buf[step.consumed..], bytes[step.consumed..]);
        payload.extend_from_slice(&buf[..step.payload]);
        consumed += step.consumed;
        if step.done {
            return Ok((payload, consumed, true));
        }
        assert_eq!(step.consumed, buf.len());
        assert!(decoder.announced() >= payload.len() as u64);
    }
    Ok((payload, consumed, false))
}

fuzz_target!(|data: &[u8]| {
    let Some((&piece, input)) = data.split_first() else { return };
    let piece = usize::from(piece).max(1);
    let unlimited = Limits { chunk_extension_bytes: usize::MAX, trailer_bytes: usize::MAX, ..Limits::default() };
    let whole = decode(input, input.len().max(1), &unlimited);
    assert_eq!(decode(input, piece, &unlimited), whole);
    let tight = Limits { chunk_extension_bytes: 8, trailer_bytes: 8, ..Limits::default() };
    assert_eq!(decode(input, piece, &tight), decode(input, input.len().max(1), &tight));
    match (http_model::chunked(input), whole) {
        (Chunked::Complete { payload, consumed }, Ok(ours)) => assert_eq!(ours, (payload, consumed, true)),
        (Chunked::Invalid | Chunked::Incomplete, Err(_)) | (Chunked::Incomplete, Ok((_, _, false))) => {}
        (model, ours) => panic!("model {model:?}, decoder {ours:?}"),
    }
});
