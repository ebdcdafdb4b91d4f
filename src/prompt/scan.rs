//! One pass over a request body: is it a JSON object, and where do its top-level values stand?
//!
//! Knows the names of the fields that make a key, not what they mean. Invariants: of a repeated name the last value
//! counts, as in Python's `json`; memory is bounded whatever the number of members; a body that was refused leaves an
//! empty scan behind. Spans are only good for the body that was read; on another one answers are wrong, never unsafe.

use super::cursor::{Cursor, Name, Text, Value};
use super::grammar::{Grammar, Nest};
use super::strings::{Span, Strings};
use std::fmt;

/// Members with names of no meaning here are remembered up to this many; past it they are looked for in the body.
const MAX_OTHERS: usize = 64;
const UTF8_BOM: &[u8] = b"\xef\xbb\xbf";

/// The body is not JSON, or not an object, or nested deeper than any engine reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotObject {
    /// Offset of the fault in the body.
    pub at: usize,
}

impl fmt::Display for NotObject {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "the body is not a JSON object: fault at byte {}", self.at)
    }
}

impl std::error::Error for NotObject {}

macro_rules! fields {
    ($($field:ident = $name:literal),* $(,)?) => {
        /// The top-level members that say what is computed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Field { $($field),* }

        impl Field {
            const COUNT: usize = [$(Self::$field),*].len();

            fn of(name: &[u8]) -> Option<Self> {
                match name {
                    $($name => Some(Self::$field),)*
                    _ => None,
                }
            }
        }
    };
}

fields! {
    Model = b"model", Stream = b"stream", Messages = b"messages", Prompt = b"prompt", Input = b"input", Tools = b"tools",
    CacheSalt = b"cache_salt", ExtraKey = b"extra_key", Lora = b"lora", LoraName = b"lora_name", LoraPath = b"lora_path",
    AdapterId = b"adapter_id", System = b"system", Instructions = b"instructions",
    PreviousResponse = b"previous_response_id", Query = b"query", Queries = b"queries", Documents = b"documents",
    Items = b"items", Text1 = b"text_1", Text2 = b"text_2", Data1 = b"data_1", Data2 = b"data_2",
}

impl Span {
    fn value(self, body: &[u8]) -> Option<Value<'_>> {
        Some(Value { raw: body.get(self.start..self.end)?, escaped: self.escaped, start: self.start, long: &[] })
    }
}

/// Where the top-level values of one body stand. Reusable: `read` forgets the body before.
#[derive(Debug, Default)]
pub struct Scan {
    fields: [Option<Span>; Field::COUNT],
    /// Name and value of the other members.
    others: Vec<(Span, Span)>,
    /// Some others did not fit.
    others_cut: bool,
    /// The strings for which a second search would cost more than a look-up, in the body's order.
    pub(super) long: Vec<Span>,
    nest: Nest,
}

impl Scan {
    /// # Errors
    /// When the body is not JSON, not an object, or has anything after it. Nothing of it is remembered then.
    pub fn read(&mut self, body: &[u8]) -> Result<(), NotObject> {
        self.forget();
        let mut long = std::mem::take(&mut self.long);
        let mut strings = Strings::new(body);
        let mut grammar = Grammar::new(body, &mut strings, &mut long);
        let read = self.object(&mut grammar, body);
        let at = grammar.at.min(body.len());
        self.long = long;
        read.ok_or_else(|| {
            self.forget();
            NotObject { at }
        })
    }

    /// Forgets the body, keeps the memory.
    pub fn clear(&mut self) {
        self.forget();
    }

    /// Makes every field one that no body has.
    #[cfg(debug_assertions)]
    pub fn poison(&mut self) {
        let nowhere = Span { start: usize::MAX - 1, end: usize::MAX, escaped: true };
        self.forget();
        self.fields = [Some(nowhere); Field::COUNT];
        self.others.push((nowhere, nowhere));
        self.long.push(nowhere);
    }

    fn forget(&mut self) {
        self.fields = [None; Field::COUNT];
        self.others.clear();
        self.others_cut = false;
        self.long.clear();
    }

    #[inline(always)]
    fn object(&mut self, grammar: &mut Grammar<'_, '_>, body: &[u8]) -> Option<()> {
        grammar.at = if body.starts_with(UTF8_BOM) { UTF8_BOM.len() } else { 0 };
        grammar.space();
        grammar.expect(b'{')?;
        grammar.space();
        if !grammar.eat(b'}') {
            self.members(grammar, body)?;
        }
        grammar.space();
        grammar.peek().is_none().then_some(())
    }

    #[inline(always)]
    fn members(&mut self, grammar: &mut Grammar<'_, '_>, body: &[u8]) -> Option<()> {
        loop {
            let start = grammar.at;
            let escaped = grammar.string()?;
            let name = Span { start, end: grammar.at, escaped };
            grammar.colon()?;
            let start = grammar.at;
            let escaped = grammar.value(&mut self.nest)?;
            self.remember(name, Span { start, end: grammar.at, escaped }, body)?;
            grammar.space();
            if grammar.eat(b'}') {
                return Some(());
            }
            grammar.expect(b',')?;
            grammar.space();
        }
    }

    fn remember(&mut self, name: Span, value: Span, body: &[u8]) -> Option<()> {
        let text = name.value(body)?.text()?;
        if let Some(field) = Field::of(text.name(&mut Name::default())) {
            self.fields[field as usize] = Some(value);
        } else if self.others.len() < MAX_OTHERS {
            self.others.push((name, value));
        } else {
            self.others_cut = true;
        }
        Some(())
    }

    #[inline]
    pub(super) fn field<'b>(&self, field: Field, body: &'b [u8]) -> Option<Value<'b>> {
        self.fields[field as usize]?.value(body)
    }

    /// The model's name, decoded. `None` when absent, null or not a string.
    pub fn model<'b>(&self, body: &'b [u8], scratch: &'b mut Vec<u8>) -> Option<&'b [u8]> {
        Some(self.field(Field::Model, body)?.text()?.decoded(scratch))
    }

    /// Does the client ask for a streamed answer?
    pub fn stream(&self, body: &[u8]) -> bool {
        self.field(Field::Stream, body).is_some_and(|value| value.raw == b"true")
    }

    /// Any top-level member: a string decoded, a number or boolean as its raw text. `None` when absent, null or a
    /// container.
    pub fn string_field<'b>(&self, name: &str, body: &'b [u8], scratch: &'b mut Vec<u8>) -> Option<&'b [u8]> {
        let value = match Field::of(name.as_bytes()) {
            Some(field) => self.field(field, body)?,
            None if self.others_cut => find_member(name.as_bytes(), body)?,
            None => self.other(name.as_bytes(), body)?,
        };
        match value.first()? {
            b'"' => Some(value.text()?.decoded(scratch)),
            b'{' | b'[' | b'n' => None,
            _ => Some(value.raw),
        }
    }

    fn other<'b>(&self, wanted: &[u8], body: &'b [u8]) -> Option<Value<'b>> {
        let named = |(name, _): &&(Span, Span)| {
            name.value(body).and_then(Value::text).is_some_and(|text| is_name(text, wanted))
        };
        self.others.iter().rev().find(named)?.1.value(body)
    }
}

fn is_name(text: Text<'_>, wanted: &[u8]) -> bool {
    if text.escaped {
        let mut decoded = Vec::new();
        text.decoded(&mut decoded) == wanted
    } else {
        text.raw == wanted
    }
}

/// The last member called `wanted`, by another walk over the body.
#[cold]
fn find_member<'b>(wanted: &[u8], body: &'b [u8]) -> Option<Value<'b>> {
    let start = body.iter().position(|&byte| byte == b'{')?;
    let mut cursor = Cursor::new(Span { start, end: body.len(), escaped: false }.value(body)?);
    cursor.enter(b'{');
    let mut found = None;
    while let Some(name) = cursor.member() {
        let value = cursor.value()?;
        if is_name(name, wanted) {
            found = Some(value);
        }
    }
    found
}
