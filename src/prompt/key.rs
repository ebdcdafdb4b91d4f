//! Which fields make the key of a request, and in which order: the engine's own.
//!
//! Knows the request bodies of the endpoints; what a message holds is `message`'s business. Never an error: content of
//! a shape that no engine takes adds nothing or ends the key.

use super::chunks::Chunks;
use super::cursor::{Cursor, Text, Value};
use super::message;
use super::scan::{Field, Scan};
use super::writer::{Tag, Writer};

/// The kind of request: decides which fields make the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `tools`, `messages`
    Chat,
    /// `prompt`
    Completions,
    /// `instructions`, `tools`, `input`
    Responses,
    /// `system`, `tools`, `messages`
    Messages,
    /// `input`, or `messages`
    Embeddings,
    /// `query`, `documents`
    Rerank,
    /// vLLM's names for a pair: `text_1` and `text_2`, `query` and `documents`, `queries` and `items`, …
    Score,
    /// `prompt`, or `messages`
    Tokenize,
    /// No key.
    Other,
}

/// A token id is below this, so that the first of its four bytes is never a tag's.
const MAX_TOKEN: u32 = 1 << 31;

/// Feeds the prompt to `chunks`, which the caller has started with the [`namespace`](super::namespace).
pub fn key(endpoint: Endpoint, scan: &Scan, body: &[u8], chunks: &mut Chunks) {
    let fields = Fields { scan, body };
    let out = &mut Writer::new(chunks);
    // A walk that ends early leaves a shorter key.
    let _whole = match endpoint {
        Endpoint::Chat => fields.chat(out),
        Endpoint::Completions => fields.one(Field::Prompt).map_or(Some(()), |value| prompt(out, value)),
        Endpoint::Embeddings => fields.prompt_or_chat(Field::Input, out),
        Endpoint::Tokenize => fields.prompt_or_chat(Field::Prompt, out),
        Endpoint::Responses => fields.responses(out),
        Endpoint::Messages => fields.messages(out),
        Endpoint::Rerank | Endpoint::Score => fields.pair(out),
        Endpoint::Other => Some(()),
    };
}

/// Is the prompt a list? Part of the namespace, because a prompt that is a string is keyed without any tag.
pub(super) fn is_list(endpoint: Endpoint, scan: &Scan, body: &[u8]) -> bool {
    let field = match endpoint {
        Endpoint::Completions | Endpoint::Tokenize => Field::Prompt,
        Endpoint::Embeddings => Field::Input,
        _ => return false,
    };
    scan.field(field, body).and_then(Value::first) != Some(b'"')
}

struct Fields<'b> {
    scan: &'b Scan,
    body: &'b [u8],
}

impl<'b> Fields<'b> {
    fn one(&self, field: Field) -> Option<Value<'b>> {
        let value = self.scan.field(field, self.body).filter(|value| value.raw != b"null")?;
        Some(Value { long: &self.scan.long, ..value })
    }

    fn chat(&self, out: &mut Writer<'_, 'b>) -> Option<()> {
        self.tools(out);
        self.one(Field::Messages).map_or(Some(()), |value| message::messages(out, value))
    }

    fn tools(&self, out: &mut Writer<'_, 'b>) {
        if let Some(value) = self.one(Field::Tools).filter(|value| value.is_filled_array()) {
            out.raw(Tag::Tools, value.raw);
        }
    }

    fn prompt_or_chat(&self, field: Field, out: &mut Writer<'_, 'b>) -> Option<()> {
        match self.one(field) {
            Some(value) => prompt(out, value),
            None => self.chat(out),
        }
    }

    fn responses(&self, out: &mut Writer<'_, 'b>) -> Option<()> {
        if let Some(text) = self.one(Field::Instructions).and_then(Value::text) {
            out.text(Tag::System, text);
        }
        self.tools(out);
        if let Some(text) = self.one(Field::PreviousResponse).and_then(Value::text) {
            out.text(Tag::EarlierResponse, text);
        }
        let Some(input) = self.one(Field::Input) else { return Some(()) };
        let Some(text) = input.text() else { return message::messages(out, input) };
        // The next turn sends the same text as the first message of a list.
        out.message(Some(Text { raw: b"user", escaped: false }));
        out.text(Tag::Text, text);
        Some(())
    }

    fn messages(&self, out: &mut Writer<'_, 'b>) -> Option<()> {
        if let Some(system) = self.one(Field::System) {
            message::content(out, Tag::System, system)?;
        }
        self.chat(out)
    }

    fn pair(&self, out: &mut Writer<'_, 'b>) -> Option<()> {
        for field in [Field::Query, Field::Queries, Field::Text1, Field::Data1] {
            self.side(field, Tag::Query, out)?;
        }
        for field in [Field::Documents, Field::Items, Field::Text2, Field::Data2] {
            self.side(field, Tag::Item, out)?;
        }
        Some(())
    }

    /// One side of a pair: a string, or several of them.
    fn side(&self, field: Field, tag: Tag, out: &mut Writer<'_, 'b>) -> Option<()> {
        let Some(value) = self.one(field) else { return Some(()) };
        match value.text() {
            Some(text) => out.text(tag, text),
            None => list(out, tag, value)?,
        }
        Some(())
    }
}

/// A prompt by itself: a string's key is its bytes alone.
fn prompt<'b>(out: &mut Writer<'_, 'b>, value: Value<'b>) -> Option<()> {
    match value.text() {
        Some(text) => out.bare(text),
        None => list(out, Tag::Item, value)?,
    }
    Some(())
}

/// A list of strings, of token ids, of lists of token ids, or of objects with content.
fn list<'b>(out: &mut Writer<'_, 'b>, tag: Tag, value: Value<'b>) -> Option<()> {
    let mut cursor = Cursor::new(value);
    if value.first() == Some(b'{') {
        return message::holder(out, tag, &mut cursor);
    }
    if !cursor.enter(b'[') {
        return Some(());
    }
    let mut in_tokens = false;
    while cursor.element() {
        out.spend(1 + cursor.take_steps())?;
        match cursor.peek()? {
            b'"' => {
                out.tag(tag);
                out.bare(cursor.value()?.text()?);
            }
            b'[' => {
                out.tag(Tag::Tokens);
                cursor.enter(b'[');
                // Among ids, a value of another kind ends the key.
                ids(out, &mut cursor)?.then_some(())?;
            }
            b'{' => message::holder(out, tag, &mut cursor)?,
            _ => {
                if !in_tokens {
                    out.tag(Tag::Tokens);
                }
                in_tokens = true;
                ids(out, &mut cursor)?;
            }
        }
    }
    Some(())
}

/// Feeds token ids; answers whether they went on to the end of their list, which is stepped over, or else only to a string
/// or a container.
fn ids(out: &mut Writer<'_, '_>, cursor: &mut Cursor<'_>) -> Option<bool> {
    // First the short ones, as nearly all are, then whatever is left.
    out.tokens(|| cursor.next_short_number());
    let (mut sound, mut ended) = (true, false);
    out.tokens(|| {
        ended = !cursor.element();
        if ended || matches!(cursor.peek(), Some(b'"' | b'[' | b'{')) {
            return None;
        }
        let id = token(cursor);
        sound = id.is_some();
        id
    });
    sound.then_some(ended)
}

/// `None` for what is no token id: the key ends there.
fn token(cursor: &mut Cursor<'_>) -> Option<u32> {
    let id = cursor.value()?.raw.iter().try_fold(0_u32, |id, byte| {
        let digit = char::from(*byte).to_digit(10)?;
        id.checked_mul(10)?.checked_add(digit)
    })?;
    (id < MAX_TOKEN).then_some(id)
}
