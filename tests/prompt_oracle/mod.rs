//! The naive twin of `trieway::prompt`: canonical key bytes from a tree that `serde_json` builds, then cut into chunks.
//!
//! Written from the key's definition, in another style than the product: it allocates at every step, builds each
//! message from its pieces, and walks a body as often as it likes. Shared by the property tests and fuzz targets.
#![allow(dead_code, reason = "each test crate uses a part of it")]

use serde::de::{Deserialize, Deserializer, Error as _, Visitor};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fmt;
use trieway::prompt::Endpoint;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

pub(crate) type Json = serde_json::Error;
type Object<'b> = BTreeMap<String, &'b RawValue>;

pub(crate) fn chunked(seed: u64, bytes: &[u8], chunk_bytes: usize) -> Vec<u64> {
    bytes
        .chunks_exact(chunk_bytes)
        .scan(seed, |link, chunk| {
            let product = u128::from(*link ^ xxh3_64(chunk)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            *link = (product >> 64) as u64 ^ (product & u128::from(u64::MAX)) as u64;
            Some(*link)
        })
        .collect()
}

pub(crate) const ENDPOINTS: [Endpoint; 9] = [
    Endpoint::Chat,
    Endpoint::Completions,
    Endpoint::Responses,
    Endpoint::Messages,
    Endpoint::Embeddings,
    Endpoint::Rerank,
    Endpoint::Score,
    Endpoint::Tokenize,
    Endpoint::Other,
];

/// The text as a stricter reader takes it: without what the product leaves to the engine. A control character becomes one
/// that may stand in a string and nowhere else.
pub(crate) fn strict(body: &[u8]) -> String {
    let plain = |char: char| match char {
        '\t' | '\n' | '\r' => ' ',
        char if char < ' ' => '\u{7f}',
        char => char,
    };
    let text = String::from_utf8_lossy(body);
    text.strip_prefix('\u{feff}').unwrap_or(&text).chars().map(plain).collect()
}

/// Is it a JSON object in the eyes of `serde_json`?
pub(crate) fn is_object(body: &str) -> bool {
    serde_json::from_str::<&RawValue>(body).is_ok_and(|raw| raw.get().starts_with('{'))
}

/// All bytes of the key, the rest that fills no chunk included. An error when `serde_json` reads less than the
/// product does (a name with a lone surrogate).
pub(crate) fn canonical(endpoint: Endpoint, body: &str) -> Result<Vec<u8>, Json> {
    let body: Object<'_> = serde_json::from_str(body)?;
    let field = |name: &str| body.get(name).copied().filter(|value| value.get() != "null");
    let chat = || -> Result<Vec<u8>, Json> { Ok([tools(field("tools"))?, messages(field("messages"))?].concat()) };
    match endpoint {
        Endpoint::Chat => chat(),
        Endpoint::Completions => field("prompt").map_or(Ok(vec![]), prompt),
        Endpoint::Embeddings => field("input").map_or_else(chat, prompt),
        Endpoint::Tokenize => field("prompt").map_or_else(chat, prompt),
        Endpoint::Messages => Ok([content(field("system"), b's', true)?, chat()?].concat()),
        Endpoint::Responses => {
            let input = match field("input") {
                Some(value) if is_string(value) => said(Some(b"user".to_vec()), tagged(b'x', &string(value)?)),
                other => messages(other)?,
            };
            let [instructions, earlier] = [("instructions", b's'), ("previous_response_id", b'e')]
                .map(|(name, tag)| field(name).filter(|value| is_string(value)).map_or(Ok(vec![]), |v| text(v, tag)));
            Ok([instructions?, tools(field("tools"))?, earlier?, input].concat())
        }
        Endpoint::Rerank | Endpoint::Score => {
            let mut bytes = Vec::new();
            for name in ["query", "queries", "text_1", "data_1"] {
                if side(field(name), b'q', &mut bytes)? == KeyEnds::Here {
                    return Ok(bytes);
                }
            }
            for name in ["documents", "items", "text_2", "data_2"] {
                if side(field(name), b'i', &mut bytes)? == KeyEnds::Here {
                    return Ok(bytes);
                }
            }
            Ok(bytes)
        }
        Endpoint::Other => Ok(vec![]),
    }
}

/// Decoded text as bytes: lone surrogates come as WTF-8.
struct Bytes(Vec<u8>);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl Visitor<'_> for Any {
            type Value = Bytes;
            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a string")
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes(bytes.to_vec()))
            }
        }
        deserializer.deserialize_bytes(Any)
    }
}

fn is_string(raw: &RawValue) -> bool {
    raw.get().starts_with('"')
}

fn string(raw: &RawValue) -> Result<Vec<u8>, Json> {
    if !is_string(raw) {
        return Err(Json::custom("not a string"));
    }
    serde_json::from_str::<Bytes>(raw.get()).map(|bytes| bytes.0)
}

fn elements(raw: &RawValue) -> Result<Vec<&RawValue>, Json> {
    if raw.get().starts_with('[') { serde_json::from_str(raw.get()) } else { Ok(vec![]) }
}

fn object(raw: &RawValue) -> Result<Object<'_>, Json> {
    if raw.get().starts_with('{') { serde_json::from_str(raw.get()) } else { Ok(Object::new()) }
}

fn string_at(object: &Object<'_>, name: &str) -> Result<Option<Vec<u8>>, Json> {
    object.get(name).filter(|value| is_string(value)).map(|value| string(value)).transpose()
}

fn tagged(tag: u8, bytes: &[u8]) -> Vec<u8> {
    if bytes.is_empty() { vec![] } else { [&[0xff, tag], bytes].concat() }
}

fn text(raw: &RawValue, tag: u8) -> Result<Vec<u8>, Json> {
    Ok(tagged(tag, &string(raw)?))
}

/// A message says something, or adds nothing.
fn said(role: Option<Vec<u8>>, what: Vec<u8>) -> Vec<u8> {
    if what.is_empty() { what } else { [&b"\xffm"[..], &role.unwrap_or_default(), &what].concat() }
}

fn tools(raw: Option<&RawValue>) -> Result<Vec<u8>, Json> {
    filled_list(raw, b't')
}

fn filled_list(raw: Option<&RawValue>, tag: u8) -> Result<Vec<u8>, Json> {
    let Some(raw) = raw else { return Ok(vec![]) };
    Ok(if elements(raw)?.is_empty() { vec![] } else { tagged(tag, raw.get().as_bytes()) })
}

fn messages(raw: Option<&RawValue>) -> Result<Vec<u8>, Json> {
    let mut bytes = Vec::new();
    for element in raw.map_or(Ok(vec![]), elements)? {
        if element.get().starts_with('{') {
            bytes.extend(message(element)?);
        }
    }
    Ok(bytes)
}

fn message(raw: &RawValue) -> Result<Vec<u8>, Json> {
    let fields = &object(raw)?;
    let mut what = content(fields.get("content").copied(), b'x', true)?;
    if let Some(raw) =
        last_of(raw, &["reasoning_content", "reasoning"])?.filter(|raw| is_string(raw) && raw.get() != "\"\"")
    {
        what.extend(tagged(b'r', raw.get().as_bytes()));
    }
    what.extend(filled_list(fields.get("tool_calls").copied(), b'c')?);
    if let Some(arguments) = string_at(fields, "arguments")? {
        what.extend(tagged(b'c', &string_at(fields, "name")?.unwrap_or_default()));
        what.extend(tagged(b'c', &arguments));
    }
    what.extend(content(fields.get("output").copied(), b'o', true)?);
    Ok(said(string_at(fields, "role")?, what))
}

fn content(raw: Option<&RawValue>, tag: u8, outer: bool) -> Result<Vec<u8>, Json> {
    let Some(raw) = raw else { return Ok(vec![]) };
    if is_string(raw) {
        return text(raw, tag);
    }
    let mut bytes = Vec::new();
    for element in elements(raw)? {
        if is_string(element) {
            bytes.extend(text(element, tag)?);
        } else if element.get().starts_with('{') {
            bytes.extend(part(element, tag, outer)?);
        }
    }
    Ok(bytes)
}

const MEDIA: [&str; 12] = [
    "image_url",
    "input_audio",
    "audio_url",
    "video_url",
    "file",
    "source",
    "image",
    "audio",
    "video",
    "file_id",
    "file_data",
    "file_url",
];

fn part(raw: &RawValue, tag: u8, outer: bool) -> Result<Vec<u8>, Json> {
    let fields = object(raw)?;
    let kind = string_at(&fields, "type")?.unwrap_or_default();
    if let Some(text) = string_at(&fields, "text")? {
        return Ok(tagged(tag, &text));
    }
    if let Some(text) = string_at(&fields, "thinking")? {
        return Ok(tagged(b'r', &text));
    }
    if let Some(media) = last_of(raw, &MEDIA)? {
        return Ok(payload(media)?.map_or(vec![], |payload| digest(&kind, &payload)));
    }
    if let Some(input) = fields.get("input") {
        let name = tagged(b'c', &string_at(&fields, "name")?.unwrap_or_default());
        return Ok([name, tagged(b'c', input.get().as_bytes())].concat());
    }
    if let Some(inner) = fields.get("content").filter(|_| outer) {
        return content(Some(inner), b'o', false);
    }
    let plain = ["", "text", "input_text", "output_text", "tool_result"];
    let foreign = !plain.iter().any(|name| name.as_bytes() == kind);
    Ok(if foreign { digest(&kind, raw.get().as_bytes()) } else { vec![] })
}

fn digest(kind: &[u8], payload: &[u8]) -> Vec<u8> {
    tagged(b'd', &xxh3_64_with_seed(payload, xxh3_64_with_seed(kind, 0)).to_le_bytes())
}

fn payload(media: &RawValue) -> Result<Option<Vec<u8>>, Json> {
    if is_string(media) {
        return Ok(Some(string(media)?).filter(|bytes| !bytes.is_empty()));
    }
    if object(media)?.is_empty() {
        return Ok(None);
    }
    let mut found = None;
    for (name, value) in in_order(media)? {
        if ["url", "data", "file_data", "file_id"].contains(&&name[..]) && is_string(value) {
            found = Some(string(value)?);
        }
    }
    Ok(Some(found.unwrap_or_else(|| media.get().as_bytes().to_vec())))
}

fn last_of<'b>(raw: &'b RawValue, names: &[&str]) -> Result<Option<&'b RawValue>, Json> {
    Ok(in_order(raw)?.into_iter().rfind(|(name, _)| names.contains(&&name[..])).map(|(_, value)| value))
}

/// The members of an object as they stand, repeated names included.
fn in_order(raw: &RawValue) -> Result<Vec<(String, &RawValue)>, Json> {
    struct Members<'b>(Vec<(String, &'b RawValue)>);
    impl<'de> Deserialize<'de> for Members<'de> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Any;
            impl<'de> Visitor<'de> for Any {
                type Value = Members<'de>;
                fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                    out.write_str("an object")
                }
                fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                    let mut members = Vec::new();
                    while let Some(member) = map.next_entry()? {
                        members.push(member);
                    }
                    Ok(Members(members))
                }
            }
            deserializer.deserialize_map(Any)
        }
    }
    serde_json::from_str::<Members<'_>>(raw.get()).map(|members| members.0)
}

#[derive(PartialEq)]
enum KeyEnds {
    Here,
    Later,
}

fn prompt(raw: &RawValue) -> Result<Vec<u8>, Json> {
    if is_string(raw) {
        return string(raw);
    }
    let mut bytes = Vec::new();
    list(raw, b'i', &mut bytes)?;
    Ok(bytes)
}

fn side(raw: Option<&RawValue>, tag: u8, bytes: &mut Vec<u8>) -> Result<KeyEnds, Json> {
    match raw {
        Some(raw) if is_string(raw) => bytes.extend(text(raw, tag)?),
        Some(raw) => return list(raw, tag, bytes),
        None => {}
    }
    Ok(KeyEnds::Later)
}

fn list(raw: &RawValue, tag: u8, bytes: &mut Vec<u8>) -> Result<KeyEnds, Json> {
    if raw.get().starts_with('{') {
        bytes.extend(holder(raw, tag)?);
    }
    let mut in_tokens = false;
    for element in elements(raw)? {
        match element.get().as_bytes()[0] {
            b'"' => bytes.extend([vec![0xff, tag], string(element)?].concat()),
            b'{' => bytes.extend(holder(element, tag)?),
            b'[' => {
                bytes.extend(b"\xffk");
                if ids(&elements(element)?, bytes) == KeyEnds::Here {
                    return Ok(KeyEnds::Here);
                }
            }
            _ => {
                bytes.extend(if in_tokens { &b""[..] } else { b"\xffk" });
                in_tokens = true;
                if ids(&[element], bytes) == KeyEnds::Here {
                    return Ok(KeyEnds::Here);
                }
            }
        }
    }
    Ok(KeyEnds::Later)
}

fn ids(elements: &[&RawValue], bytes: &mut Vec<u8>) -> KeyEnds {
    for element in elements {
        match element.get().parse::<u32>() {
            Ok(id) if id < 1 << 31 => bytes.extend(id.to_be_bytes()),
            _ => return KeyEnds::Here,
        }
    }
    KeyEnds::Later
}

fn holder(raw: &RawValue, tag: u8) -> Result<Vec<u8>, Json> {
    let fields = object(raw)?;
    match string_at(&fields, "text")? {
        Some(text) => Ok(tagged(tag, &text)),
        None => content(fields.get("content").copied(), tag, true),
    }
}
