//! One pass over a request body: is it a JSON object, and where do its top-level values stand?
//!
//! Knows the names of the fields that make a key, not what they mean. Invariants: of a repeated name the last value
//! counts, as in Python's `json`; memory is bounded whatever the number of members; a body that was refused leaves an
//! empty scan behind. Spans are only good for the body that was read; on another one answers are wrong, never unsafe.

use super::cursor::{Cursor, Name, Text, Value};
use super::grammar::{Grammar, Nest, Pause};
use super::strings::{Span, Strings};
use std::fmt;

/// Names and values that another walk for a member passes at most.
const MAX_STEPS: u32 = 1 << 18;
/// Members with names of no meaning here are remembered up to this many; past it they are looked for in the body.
const MAX_OTHERS: usize = 64;
/// Of longer strings that are asked for by themselves, the beginning counts: no name is longer.
const MAX_STRING: usize = 64 << 10;
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
    place: Place,
    /// Where the next step begins, and how the last one paused.
    at: usize,
    paused: Option<Pause>,
}

/// What stands where a step begins.
#[derive(Clone, Copy, Debug, Default)]
enum Place {
    #[default]
    Body,
    /// A member's name.
    Member,
    /// The value of the member of this name.
    Value(Span),
    /// An element within the container that begins at `start` and is the member's value.
    Element { name: Span, start: usize },
    /// What follows a member.
    Behind,
    /// Space up to the end of the body.
    End,
}

/// What a step has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The body has been read.
    Done,
    /// There is more to read.
    More,
}

impl Scan {
    /// # Errors
    /// When the body is not JSON, not an object, or has anything after it. Nothing of it is remembered then.
    pub fn read(&mut self, body: &[u8]) -> Result<(), NotObject> {
        self.begin();
        let mut long = std::mem::take(&mut self.long);
        let mut strings = Strings::new(body);
        let mut grammar = Grammar::<false>::new(body, &mut strings, &mut long);
        let read = self.object(&mut grammar, body);
        let at = grammar.at.min(body.len());
        self.long = long;
        read.ok_or_else(|| {
            self.begin();
            NotObject { at }
        })
    }

    /// Forgets the body, keeps the memory.
    pub fn clear(&mut self) {
        self.begin();
    }

    /// Makes every field one that no body has.
    #[cfg(debug_assertions)]
    pub fn poison(&mut self) {
        let nowhere = Span { start: usize::MAX - 1, end: usize::MAX, escaped: true };
        self.begin();
        self.fields = [Some(nowhere); Field::COUNT];
        self.others.push((nowhere, nowhere));
        self.long.push(nowhere);
    }

    #[inline(always)]
    fn object(&mut self, grammar: &mut Grammar<'_, '_, false>, body: &[u8]) -> Option<()> {
        if self.enter(grammar, body)? {
            self.members(grammar, body)?;
        }
        grammar.space();
        grammar.peek().is_none().then_some(())
    }

    /// Steps into the object; answers whether it has members.
    #[inline(always)]
    fn enter<const SLICED: bool>(&self, grammar: &mut Grammar<'_, '_, SLICED>, body: &[u8]) -> Option<bool> {
        grammar.at = if body.starts_with(UTF8_BOM) { UTF8_BOM.len() } else { 0 };
        grammar.space();
        grammar.expect(b'{')?;
        grammar.space();
        Some(!grammar.eat(b'}'))
    }

    #[inline(always)]
    fn members(&mut self, grammar: &mut Grammar<'_, '_, false>, body: &[u8]) -> Option<()> {
        loop {
            let start = grammar.at;
            let escaped = grammar.string()?;
            let name = Span { start, end: grammar.at, escaped };
            grammar.colon()?;
            let start = grammar.at;
            let escaped = match grammar.peek()? {
                b'{' | b'[' => {
                    self.nest.begin();
                    grammar.container(&mut self.nest)?;
                    false
                }
                _ => grammar.simple_value()?,
            };
            self.remember(name, Span { start, end: grammar.at, escaped }, body)?;
            if !self.goes_on(grammar)? {
                return Some(());
            }
        }
    }

    /// Steps over what follows a member; answers whether another one does.
    #[inline(always)]
    fn goes_on<const SLICED: bool>(&self, grammar: &mut Grammar<'_, '_, SLICED>) -> Option<bool> {
        grammar.space();
        if grammar.eat(b'}') {
            return Some(false);
        }
        grammar.expect(b',')?;
        grammar.space();
        Some(true)
    }

    /// Begins with another body, for [`Scan::step`].
    pub fn begin(&mut self) {
        self.fields = [None; Field::COUNT];
        self.others.clear();
        self.others_cut = false;
        self.long.clear();
        (self.place, self.at, self.paused) = (Place::Body, 0, None);
    }

    /// Reads on in the same body for about `bytes`; plain strings, spaces and digits are cheap and not cut. Any steps give what
    /// [`Scan::read`] gives.
    ///
    /// # Errors
    /// As [`Scan::read`].
    pub fn step(&mut self, body: &[u8], bytes: usize) -> Result<Progress, NotObject> {
        let mut long = std::mem::take(&mut self.long);
        let mut strings = Strings::new(body);
        let known = self.paused.as_ref().map_or(0, Pause::at);
        let stop = self.at.max(known).saturating_add(bytes.max(1));
        let mut grammar = Grammar::<true>::new(body, &mut strings, &mut long).between(self.at, self.paused, stop);
        let read = self.go_on(&mut grammar, body);
        let (at, paused) = (grammar.at.min(body.len()), grammar.paused);
        self.long = long;
        self.paused = paused;
        match (read, paused) {
            (Some(()), _) => Ok(Progress::Done),
            (None, Some(_)) => Ok(Progress::More),
            (None, None) => {
                self.begin();
                Err(NotObject { at })
            }
        }
    }

    /// Where the scan has come to.
    pub fn at(&self) -> usize {
        self.at
    }

    /// The object once more, from where the last step has paused.
    fn go_on(&mut self, grammar: &mut Grammar<'_, '_, true>, body: &[u8]) -> Option<()> {
        loop {
            let start = grammar.at;
            self.place = match self.place {
                Place::Body if self.enter(grammar, body)? => Place::Member,
                Place::Body => Place::End,
                Place::Member if grammar.pauses() => return None,
                Place::Member => {
                    let escaped = grammar.string()?;
                    let name = Span { start, end: grammar.at, escaped };
                    grammar.colon()?;
                    Place::Value(name)
                }
                Place::Value(name) if matches!(grammar.peek(), Some(b'{' | b'[')) => {
                    self.nest.begin();
                    Place::Element { name, start }
                }
                Place::Value(name) => {
                    let escaped = grammar.simple_value()?;
                    self.remember(name, Span { start, end: grammar.at, escaped }, body)?;
                    Place::Behind
                }
                Place::Element { name, start } => {
                    if grammar.container(&mut self.nest).is_none() {
                        self.at = grammar.at;
                        return None;
                    }
                    self.remember(name, Span { start, end: grammar.at, escaped: false }, body)?;
                    Place::Behind
                }
                Place::Behind if self.goes_on(grammar)? => Place::Member,
                Place::Behind => Place::End,
                Place::End => {
                    grammar.space();
                    return grammar.peek().is_none().then_some(());
                }
            };
            self.at = grammar.at;
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
        Some(self.field(Field::Model, body)?.text()?.cut(MAX_STRING).decoded(scratch))
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
            b'"' => Some(value.text()?.cut(MAX_STRING).decoded(scratch)),
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
    let (mut found, mut steps) = (None, 0);
    while let Some(name) = cursor.member() {
        let value = cursor.value()?;
        if is_name(name, wanted) {
            found = Some(value);
        }
        steps += 1 + cursor.take_steps();
        if steps > MAX_STEPS {
            break;
        }
    }
    found
}
