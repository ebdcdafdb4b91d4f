//! The chunked coding: every message whole, byte by byte and cut at every point; tables of what is accepted and refused;
//! random messages against a naive second reading.

#![allow(clippy::unwrap_used, reason = "helpers of tests, too, may fail by a panic")]

mod http_model;

use http_model::Chunked;
use proptest::prelude::*;
use trieway::http::Limits;
use trieway::http::chunked::{ChunkError, Decoder, Step, write_size};

/// Payload, bytes consumed, whether the end was reached.
type Decoded = Result<(Vec<u8>, usize, bool), ChunkError>;

/// Decodes `input` fed in pieces that end at `cuts`.
fn decode_in_pieces(input: &[u8], cuts: &[usize], limits: &Limits) -> Decoded {
    let mut decoder = Decoder::new(limits);
    let (mut payload, mut consumed, mut start) = (Vec::new(), 0, 0);
    for &cut in cuts.iter().chain([&input.len()]) {
        let mut piece = input[start..cut].to_vec();
        start = cut;
        let step = decoder.decode(&mut piece)?;
        payload.extend_from_slice(&piece[..step.payload]);
        consumed += step.consumed;
        if step.done {
            assert_eq!(piece[step.consumed..], input[consumed..cut], "bytes after the end were touched");
            return Ok((payload, consumed, true));
        }
        assert_eq!(step.consumed, piece.len(), "bytes were left although the message goes on");
    }
    Ok((payload, consumed, false))
}

/// The verdict on `input`, the same under every split.
fn decode(input: &[u8]) -> Decoded {
    let limits = Limits { chunk_extension_bytes: 64, trailer_bytes: 64, ..Limits::default() };
    let whole = decode_in_pieces(input, &[], &limits);
    for cut in 0..input.len() {
        assert_eq!(decode_in_pieces(input, &[cut], &limits), whole, "cut at {cut}: {}", input.escape_ascii());
    }
    let every_byte: Vec<usize> = (0..input.len()).collect();
    assert_eq!(decode_in_pieces(input, &every_byte, &limits), whole, "{}", input.escape_ascii());
    whole
}

fn accepted(input: &str, payload: &str) {
    let surplus = "GET / HTTP/1.1\r\n";
    for after in ["", surplus, "\r\n", "0"] {
        let expected = Ok((payload.as_bytes().to_vec(), input.len(), true));
        assert_eq!(decode(format!("{input}{after}").as_bytes()), expected, "{input:?} + {after:?}");
    }
}

fn refused(input: &str, expected: ChunkError) {
    assert_eq!(decode(input.as_bytes()), Err(expected), "{input:?}");
}

#[test]
fn messages_are_decoded() {
    accepted("0\r\n\r\n", "");
    accepted("5\r\nhello\r\n0\r\n\r\n", "hello");
    accepted("5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n", "hello world");
    accepted("a\r\n0123456789\r\nA\r\n0123456789\r\n0\r\n\r\n", "01234567890123456789");
    accepted("0000000000000005\r\nhello\r\n0000000000000000\r\n\r\n", "hello");
    accepted("4\r\n\r\n\r\n\r\n0\r\n\r\n", "\r\n\r\n");
    accepted("5\r\n0\r\n\r\n\r\n0\r\n\r\n", "0\r\n\r\n");
    accepted("1\r\nx\r\n000\r\n\r\n", "x");
}

#[test]
fn extensions_and_trailers_are_dropped() {
    accepted("5;a\r\nhello\r\n0\r\n\r\n", "hello");
    accepted("5;a=b;c=\"d;\\\"\\\\=\u{e9}\"\r\nhello\r\n0;last\r\n\r\n", "hello");
    accepted("5 ;\ta = b ; c\r\nhello\r\n0\r\n\r\n", "hello");
    accepted("5;a=\"\"\r\nhello\r\n0\r\n\r\n", "hello");
    accepted("1\r\nx\r\n0\r\nA: b\r\nC:\r\nd:\t e \u{e9}\r\n\r\n", "x");
}

#[test]
fn bad_sizes_are_refused() {
    for size in [
        "",
        ";x",
        " ",
        " 5",
        "-1",
        "+5",
        "0x5",
        "0_0",
        "123x",
        "5x",
        "g",
        "5,",
        "\u{ff15}",
        "5\0",
        "5:",
        "00000000000000000000005",
        "10000000000000005",
        "00000000000000000",
    ] {
        refused(&format!("{size}\r\nhello\r\n0\r\n\r\n"), ChunkError::Size);
    }
    refused("1\r\nx\r\n\r\n0\r\n\r\n", ChunkError::Size);
    refused("FFFFFFFFFFFFFFFF\r\nx", ChunkError::SizeOverflow);
    refused("8000000000000000\r\nx", ChunkError::SizeOverflow);
    refused("1\r\nx\r\n7fffffffffffffff\r\nx", ChunkError::SizeOverflow);
}

#[test]
fn lines_end_with_crlf_and_nothing_else() {
    for input in [
        "5\nhello\r\n0\r\n\r\n",
        "5\rhello",
        "5\r\rhello",
        "\nhello",
        "5;a\nb\r\nhello\r\n",
        "5;a\nhello\r\n",
        "5;a\rb\r\n",
        "5;a=\"\r\n0\r\n\r\n\"\r\n",
        "5;a=\"\n\"\r\n",
        "5 \r\nhello",
        "5;\r\nhello",
        "5;a=\r\nhello",
        "5;a \r\nhello",
        "5;a=\"b\" \r\nhello",
        "0\n\r\n",
        "0\r\n\n",
        "0\r\n\rx",
        "0\r\nA: b\n\r\n",
        "0\r\nA: b\rc\r\n\r\n",
        "0\r\nA\r\n\r\n",
    ] {
        refused(input, ChunkError::LineEnd);
    }
    for input in
        ["5\r\nhello0\r\n\r\n", "5\r\nhello\n0\r\n\r\n", "5\r\nhello\r0", "5\r\nhellox\r\n", "5\r\nhello\r\r\n"]
    {
        refused(input, ChunkError::DataEnd);
    }
}

#[test]
fn malformed_extensions_and_trailers_are_refused() {
    for extension in [
        "5;;a",
        "5;=b",
        "5; ;",
        "5 a",
        "5;a b",
        "5;a=b c",
        "5;a=\"b\"c",
        "5;a=b\"",
        "5;\u{e9}",
        "5;a\0",
        "5;a=\"\0\"",
        "5;a=\"\\\0\"",
        "5;a==b",
        "5;\"a\"",
        "5;a=(b)",
        "5;a=\"\u{7f}\"",
    ] {
        refused(&format!("{extension}\r\nhello\r\n0\r\n\r\n"), ChunkError::Extension);
    }
    for trailer in [": b", " A: b", "\tA: b", "A : b", "A: \0", "A\u{e9}: b", "A: b\r\n c", "A: \u{7f}"] {
        refused(&format!("0\r\n{trailer}\r\n\r\n"), ChunkError::Trailer);
    }
}

#[test]
fn extensions_and_trailers_are_capped_over_the_whole_message() {
    let limit = 64;
    let chunk = |name: usize| format!("1;{}\r\nx\r\n", "a".repeat(name));
    // The semicolon and the CR count too.
    accepted(&format!("{}0\r\n\r\n", chunk(62)), "x");
    refused(&format!("{}0\r\n\r\n", chunk(63)), ChunkError::ExtensionsTooLong { limit });
    refused(&chunk(8).repeat(7), ChunkError::ExtensionsTooLong { limit });
    refused(&format!("1;a=\"{}", "b".repeat(1 << 10)), ChunkError::ExtensionsTooLong { limit });
    accepted(&format!("0\r\nA:{}\r\n\r\n", "b".repeat(59)), "");
    refused(&format!("0\r\nA:{}\r\n\r\n", "b".repeat(60)), ChunkError::TrailersTooLong { limit });
    refused(&format!("0\r\n{}\r\n", "A: b\r\n".repeat(20)), ChunkError::TrailersTooLong { limit });
}

#[test]
fn a_message_that_is_cut_is_not_done() {
    let input = b"5;a=b\r\nhello\r\n3\r\nabc\r\n0\r\nT: v\r\n\r\n";
    for end in 0..input.len() {
        let (_, consumed, done) = decode(&input[..end]).unwrap();
        assert_eq!((consumed, done), (end, false));
    }
}

#[test]
fn a_fault_stays() {
    let mut decoder = Decoder::new(&Limits::default());
    assert_eq!(decoder.decode(&mut b"x\r\n".to_vec()), Err(ChunkError::Size));
    assert_eq!(decoder.decode(&mut b"0\r\n\r\n".to_vec()), Err(ChunkError::Size));
    assert_eq!(decoder.decode(&mut []), Err(ChunkError::Size));
}

#[test]
fn nothing_is_consumed_after_the_end() {
    let mut decoder = Decoder::new(&Limits::default());
    assert!(decoder.decode(&mut b"0\r\n\r\n".to_vec()).unwrap().done);
    let mut more = b"5\r\nhello\r\n".to_vec();
    assert_eq!(decoder.decode(&mut more), Ok(Step { consumed: 0, payload: 0, done: true }));
    assert_eq!(more, b"5\r\nhello\r\n");
}

#[test]
fn what_is_announced_is_known_before_it_has_come() {
    let mut decoder = Decoder::new(&Limits::default());
    decoder.decode(&mut b"5\r\nhello\r\n80000000".to_vec()).unwrap();
    assert_eq!(decoder.announced(), 5);
    decoder.decode(&mut b"\r\n".to_vec()).unwrap();
    assert_eq!(decoder.announced(), 5 + 0x8000_0000);
}

#[test]
fn sizes_are_written() {
    for size in [0, 1, 9, 0xf, 0x10, 0x1a2, 0xffff, 0x10000, usize::MAX] {
        let mut out = [0; 18];
        let length = write_size(size, &mut out);
        assert_eq!(out[..length], *format!("{size:x}\r\n").as_bytes());
    }
}

/// Pieces that, strung together, come near to what is valid in many places.
fn near_message() -> impl Strategy<Value = Vec<u8>> {
    const PIECES: &[&[u8]] = &[
        b"0",
        b"1",
        b"5",
        b"a",
        b"F",
        b"0\r\n",
        b"0\r\n\r\n",
        b"1\r\nx\r\n",
        b"5\r\nhello\r\n",
        b"3\r\n\r\n0\r\n",
        b"\r\n",
        b"\r",
        b"\n",
        b";",
        b"=",
        b"\"",
        b"\\",
        b" ",
        b"\t",
        b"x",
        b"q;",
        b";a",
        b";a=b",
        b";a=\"b\"",
        b":",
        b"A: b\r\n",
        b"\0",
        b"\xff",
        b"7fffffffffffffff",
        b"hello",
    ];
    proptest::collection::vec(proptest::sample::select(PIECES), 0..14).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_read_as_the_model_reads_them(input in near_message(), cuts in proptest::collection::vec(0usize..100, 0..6)) {
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(input.len())).collect();
        cuts.sort_unstable();
        let limits = Limits::default();
        let decoded = decode_in_pieces(&input, &cuts, &limits);
        prop_assert_eq!(&decoded, &decode_in_pieces(&input, &[], &limits));
        match (http_model::chunked(&input), decoded) {
            (Chunked::Complete { payload, consumed }, Ok(decoded)) => prop_assert_eq!(decoded, (payload, consumed, true)),
            (Chunked::Invalid | Chunked::Incomplete, Err(_)) | (Chunked::Incomplete, Ok((_, _, false))) => {}
            (model, decoded) => prop_assert!(false, "model {:?}, decoder {:?}", model, decoded),
        }
    }

    #[test]
    fn any_payload_comes_back_from_any_chunking(chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..300), 0..8), piece in 1usize..600) {
        let mut input = Vec::new();
        for chunk in &chunks {
            let mut size = [0; 18];
            let length = write_size(chunk.len(), &mut size);
            input.extend_from_slice(&size[..length]);
            input.extend_from_slice(chunk);
            input.extend_from_slice(b"\r\n");
        }
        input.extend_from_slice(trieway::http::chunked::LAST_CHUNK);
        let cuts: Vec<usize> = (piece..input.len()).step_by(piece).collect();
        prop_assert_eq!(decode_in_pieces(&input, &cuts, &Limits::default()), Ok((chunks.concat(), input.len(), true)));
    }
}
