//! The key of generated bodies, mangled ones included, against the naive twin in `prompt_oracle`.

mod prompt_oracle;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use trieway::prompt::{Chunks, Endpoint, Scan, UNKEYED, key};

/// Names that mean something somewhere, and some that look like them.
const NAMES: [&str; 48] = [
    "model",
    "stream",
    "messages",
    "prompt",
    "input",
    "tools",
    "cache_salt",
    "lora_path",
    "system",
    "instructions",
    "previous_response_id",
    "query",
    "queries",
    "documents",
    "items",
    "text_1",
    "text_2",
    "data_1",
    "data_2",
    "user",
    "role",
    "content",
    "tool_calls",
    "reasoning_content",
    "reasoning",
    "name",
    "arguments",
    "output",
    "type",
    "text",
    "thinking",
    "image_url",
    "input_audio",
    "source",
    "file_id",
    "url",
    "data",
    "file_data",
    "",
    "Role",
    "contents",
    "text_",
    "r\\u006fle",
    "\\u0063ontent",
    "te\\u0078t",
    "\\u006dessages",
    "\\ud83d\\ude00",
    "a\\\"]}",
];

/// The name of a member, quotes left out.
fn name() -> impl Strategy<Value = &'static str> {
    select(&NAMES[..])
}

fn space() -> impl Strategy<Value = &'static str> {
    prop_oneof![6 => Just(""), 1 => select(&[" ", "\n", "\t\r\n", "    "][..])]
}

fn string() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => "[ -!#-\\[\\]-~]{0,40}",
        1 => "[éß漢字😀\u{7f}\u{80}\u{ffff}]{1,4}",
        1 => select(&["\\n", "\\\"", "\\\\", "\\/", "\\t", "\\b", "\\f", "\\r"][..]).prop_map(str::to_owned),
        1 => any::<u16>().prop_map(|unit| format!("\\u{unit:04x}")),
        1 => ("[ !#-\\[\\]-~]{1,70}", 1..12_usize).prop_map(|(piece, times)| piece.repeat(times)),
        1 => (0xd7f0..0xe010_u32, 0xdbf0..0xe010_u32).prop_map(|(high, low)| format!("\\u{high:04X}\\u{low:04x}")),
    ];
    vec(piece, 0..5).prop_map(|pieces| format!("\"{}\"", pieces.concat()))
}

fn scalar() -> impl Strategy<Value = String> {
    let odd = &["null", "true", "false", "7", "-0.5e+3", "{}", "[]", "\"\"", "2147483648", "0"][..];
    prop_oneof![2 => string(), 1 => select(odd).prop_map(str::to_owned), 1 => any::<u32>().prop_map(|id| id.to_string())]
}

fn array(element: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    vec((space(), element, space()), 0..5).prop_map(|elements| {
        let elements: Vec<String> =
            elements.iter().map(|(before, value, after)| [before, &value[..], after].concat()).collect();
        format!("[{}]", elements.join(","))
    })
}

fn object(member: impl Strategy<Value = (&'static str, String)>) -> impl Strategy<Value = String> {
    vec((space(), member, space(), space(), space()), 0..6).prop_map(|members| {
        let member = |(a, (name, value), b, c, d): &(&str, (&str, String), &str, &str, &str)| {
            format!("{a}\"{name}\"{b}:{c}{value}{d}")
        };
        format!("{{{}}}", members.iter().map(member).collect::<Vec<_>>().join(","))
    })
}

fn junk() -> impl Strategy<Value = String> {
    scalar().prop_recursive(4, 24, 4, |inner| prop_oneof![array(inner.clone()), object((name(), inner))])
}

fn kind() -> impl Strategy<Value = String> {
    let kinds = &["text", "input_text", "image_url", "image", "tool_use", "tool_result", "thinking", "unheard_of"][..];
    select(kinds).prop_map(|kind| format!("\"{kind}\""))
}

fn media() -> impl Strategy<Value = String> {
    let inside = prop_oneof![4 => select(&["url", "data", "file_data", "detail"][..]), 1 => name()];
    prop_oneof![string(), object((inside, string())), junk()]
}

fn part(inner: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    object(prop_oneof![
        4 => (Just("text"), string()),
        4 => (Just("type"), kind()),
        2 => (select(&["image_url", "source", "input_audio"][..]), media()),
        1 => (Just("content"), inner),
        1 => (Just("thinking"), string()),
        2 => (name(), junk()),
    ])
}

fn content() -> impl Strategy<Value = String> {
    let inner = prop_oneof![string(), array(part(junk()))];
    prop_oneof![3 => string(), 4 => array(prop_oneof![4 => part(inner), 1 => junk()]), 1 => junk()]
}

fn message() -> impl Strategy<Value = String> {
    object(prop_oneof![
        4 => (Just("role"), select(&["\"user\"", "\"assistant\"", "\"tool\""][..]).prop_map(str::to_owned)),
        5 => (select(&["content", "c\\u006fntent"][..]), content()),
        1 => (Just("tool_calls"), array(junk())),
        1 => (select(&["reasoning", "reasoning_content"][..]), string()),
        1 => (Just("arguments"), string()),
        1 => (Just("output"), content()),
        2 => (name(), junk()),
    ])
}

fn messages() -> impl Strategy<Value = String> {
    array(prop_oneof![6 => message(), 1 => junk()])
}

fn prompt() -> impl Strategy<Value = String> {
    let id = || prop_oneof![4 => 0..200_000_u32, 1 => 0..1_u32 << 31];
    let separator = || prop_oneof![4 => Just(","), 4 => Just(", "), 1 => Just(" ,\n")];
    let ids = || {
        (vec(id(), 0..90), separator()).prop_map(|(ids, separator)| {
            let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
            format!("[{}]", ids.join(separator))
        })
    };
    prop_oneof![string(), array(string()), ids(), array(ids()), junk(), array(part(junk()))]
}

fn body() -> impl Strategy<Value = String> {
    let prompts =
        &["prompt", "input", "query", "queries", "documents", "items", "text_1", "text_2", "data_1", "data_2"];
    let member = prop_oneof![
        4 => (Just("messages"), messages()),
        1 => (Just("input"), messages()),
        4 => (select(&prompts[..]), prompt()),
        2 => (Just("tools"), array(junk())),
        1 => (select(&["system", "instructions", "previous_response_id"][..]), content()),
        1 => (name(), junk()),
    ];
    (space(), object(member), space()).prop_map(|(before, object, after)| [before, &object[..], after].concat())
}

/// What `chunks` holds after one body; the rest is flushed so that every byte counts.
fn fed(endpoint: Endpoint, body: &[u8], scan: &Scan, chunks: &mut Chunks) -> (Vec<u64>, u64) {
    chunks.start(5);
    key(endpoint, scan, body, chunks);
    let bytes = chunks.bytes();
    chunks.feed(&vec![0; chunks.chunk_bytes() - 1]);
    (chunks.key().to_vec(), bytes)
}

fn twin(canonical: &[u8], chunk_bytes: usize) -> (Vec<u64>, u64) {
    let flushed = [canonical, &vec![0; chunk_bytes - 1]].concat();
    (prompt_oracle::chunked(5, &flushed, chunk_bytes), canonical.len() as u64)
}

/// The product and its twin agree about a body that is an object.
fn agree(body: &str, scan: &Scan) -> Result<(), TestCaseError> {
    for chunk_bytes in [16, 128] {
        let mut chunks = Chunks::new(chunk_bytes, &UNKEYED);
        for endpoint in prompt_oracle::ENDPOINTS {
            // serde_json refuses names with a lone surrogate, which mangling can make.
            let Ok(canonical) = prompt_oracle::canonical(endpoint, body) else { continue };
            let ours = fed(endpoint, body.as_bytes(), scan, &mut chunks);
            prop_assert_eq!(
                ours,
                twin(&canonical, chunk_bytes),
                "{:?} {}",
                endpoint,
                String::from_utf8_lossy(&canonical)
            );
        }
    }
    Ok(())
}

/// One edit at a place: another byte, one more, one less, a copy of a piece, or a cut.
#[derive(Clone, Debug)]
enum Edit {
    Put(Index, u8),
    Insert(Index, u8),
    Remove(Index),
    Copy(Index, Index, Index),
    Cut(Index),
}

fn edit() -> impl Strategy<Value = Edit> {
    let byte = || prop_oneof![3 => select(&b"\"\\{}[]:, 0u-\n\xff\x00"[..]), 1 => any::<u8>()];
    prop_oneof![
        4 => (any::<Index>(), byte()).prop_map(|(at, byte)| Edit::Put(at, byte)),
        4 => (any::<Index>(), byte()).prop_map(|(at, byte)| Edit::Insert(at, byte)),
        4 => any::<Index>().prop_map(Edit::Remove),
        2 => any::<[Index; 3]>().prop_map(|[from, to, at]| Edit::Copy(from, to, at)),
        1 => any::<Index>().prop_map(Edit::Cut),
    ]
}

fn mangle(body: &mut Vec<u8>, edit: &Edit) {
    if body.is_empty() {
        return;
    }
    match edit {
        Edit::Put(at, byte) => *at.get_mut(body) = *byte,
        Edit::Insert(at, byte) => body.insert(at.index(body.len()), *byte),
        Edit::Remove(at) => drop(body.remove(at.index(body.len()))),
        Edit::Copy(from, to, at) => {
            let (from, to) = (from.index(body.len()), to.index(body.len()));
            let piece = body[from.min(to)..from.max(to)].to_vec();
            let at = at.index(body.len());
            body.splice(at..at, piece);
        }
        Edit::Cut(at) => body.truncate(at.index(body.len())),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn keys_are_those_of_the_twin(body in body()) {
        let mut scan = Scan::default();
        prop_assert_eq!(scan.read(body.as_bytes()), Ok(()), "{}", body);
        agree(&body, &scan)?;
    }

    #[test]
    fn mangled_bodies_have_the_twins_key_or_none(body in body(), edits in vec(edit(), 1..4)) {
        let mut bytes = body.into_bytes();
        edits.iter().for_each(|edit| mangle(&mut bytes, edit));
        let mut scan = Scan::default();
        if scan.read(&bytes).is_err() {
            prop_assert!(!str::from_utf8(&bytes).is_ok_and(prompt_oracle::is_object), "{}", String::from_utf8_lossy(&bytes));
            for endpoint in prompt_oracle::ENDPOINTS {
                let (_, fed_bytes) = fed(endpoint, &bytes, &scan, &mut Chunks::new(16, &UNKEYED));
                prop_assert_eq!(fed_bytes, 0);
            }
        } else {
            prop_assert!(prompt_oracle::is_object(&prompt_oracle::strict(&bytes)), "{}", String::from_utf8_lossy(&bytes));
            if let Some(body) = str::from_utf8(&bytes).ok().filter(|body| prompt_oracle::is_object(body)) {
                agree(body, &scan)?;
            }
        }
    }

    /// Turn n + 1 has turn n's key as its prefix, whatever the messages are and whatever stands around them.
    #[test]
    fn the_next_turn_extends_the_key(turns in vec(message(), 1..8), around in select(&["", r#""tools":[{"a":"b"}],"#][..])) {
        let mut before = Vec::new();
        for until in 1..=turns.len() {
            let body = format!(r#"{{{around}"max_tokens":{until},"messages":[{}]}}"#, turns[..until].join(" , "));
            let mut scan = Scan::default();
            scan.read(body.as_bytes()).expect("an object");
            let mut chunks = Chunks::new(16, &UNKEYED);
            chunks.start(5);
            key(Endpoint::Chat, &scan, body.as_bytes(), &mut chunks);
            prop_assert!(chunks.key().starts_with(&before), "turn {}", until);
            before = chunks.key().to_vec();
        }
    }

    #[test]
    fn any_bytes_are_read_without_panic(bytes in vec(prop_oneof![select(&b"\"\\{}[]:,u0n "[..]), any::<u8>()], 0..64)) {
        let mut scan = Scan::default();
        let body = [&b"{\"messages\":"[..], &bytes, b"}"].concat();
        for body in [&bytes[..], &body] {
            let read = scan.read(body);
            prop_assert_eq!(read.is_ok(), prompt_oracle::is_object(&prompt_oracle::strict(body)) , "{}", String::from_utf8_lossy(body));
            for endpoint in prompt_oracle::ENDPOINTS {
                fed(endpoint, body, &scan, &mut Chunks::new(16, &UNKEYED));
            }
        }
    }
}
