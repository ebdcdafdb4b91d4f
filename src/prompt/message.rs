//! What one message adds to the key: role, content, reasoning, tool calls, under all the names that the chat APIs give
//! them (OpenAI's chat and responses, Anthropic's messages).
//!
//! Knows no endpoint. Odd content (null, a number, an object where text is expected) adds nothing. Members count in
//! the key's order, not in the body's, hence each object is walked before any of it is fed. The walk goes two levels
//! of content deep (a tool's result has parts of its own) and no deeper.

use super::cursor::{Cursor, Name, Text, Value};
use super::writer::{Tag, Writer};

/// A list of messages; an element that is no object adds nothing.
pub(super) fn messages<'b>(out: &mut Writer<'_, 'b>, value: Value<'b>) -> Option<()> {
    let mut cursor = Cursor::new(value);
    if !cursor.enter(b'[') {
        return Some(());
    }
    while cursor.element() {
        if cursor.enter(b'{') {
            message(out, &mut cursor)?;
        } else {
            cursor.value()?;
        }
        out.spend(1 + cursor.take_steps())?;
    }
    Some(())
}

fn message<'b>(out: &mut Writer<'_, 'b>, cursor: &mut Cursor<'b>) -> Option<()> {
    let (mut role, mut called, mut arguments, mut text) = (None, None, None, None);
    let [mut reasoning, mut calls, mut output] = [None; 3];
    while let Some(member) = cursor.member() {
        let value = cursor.value()?;
        let mut buffer = Name::default();
        let name = member.name(&mut buffer);
        // These two are asked for by themselves: among all names, each would be compared byte by byte.
        if name == b"content" {
            text = Some(value);
        } else if name == b"role" {
            role = value.text();
        } else {
            match name {
                b"reasoning_content" | b"reasoning" => reasoning = Some(value),
                b"tool_calls" => calls = Some(value),
                b"name" => called = value.text(),
                b"arguments" => arguments = value.text(),
                b"output" => output = Some(value),
                _ => {}
            }
        }
    }
    out.message(role);
    optional(text, |value| content(out, Tag::Text, value))?;
    if let Some(value) = reasoning.filter(|value| value.raw.len() > 2 && value.text().is_some()) {
        out.raw(Tag::Reasoning, value.raw);
    }
    if let Some(value) = calls.filter(|value| value.is_filled_array()) {
        out.raw(Tag::ToolCalls, value.raw);
    }
    if let Some(arguments) = arguments {
        tool_name(out, called);
        out.text(Tag::ToolCalls, arguments);
    }
    optional(output, |value| content(out, Tag::ToolResult, value))
}

/// The name of the tool that is called.
fn tool_name(out: &mut Writer<'_, '_>, name: Option<Text<'_>>) {
    if let Some(name) = name {
        out.text(Tag::ToolCalls, name);
    }
}

fn optional<T>(value: Option<T>, feed: impl FnOnce(T) -> Option<()>) -> Option<()> {
    value.map_or(Some(()), feed)
}

/// A string, or parts in their order. A string and one single text part add the same.
pub(super) fn content<'b>(out: &mut Writer<'_, 'b>, tag: Tag, value: Value<'b>) -> Option<()> {
    parts(out, tag, value, true)
}

fn parts<'b>(out: &mut Writer<'_, 'b>, tag: Tag, value: Value<'b>, outer: bool) -> Option<()> {
    if let Some(text) = value.text() {
        out.text(tag, text);
        return Some(());
    }
    let mut cursor = Cursor::new(value);
    if !cursor.enter(b'[') {
        return Some(());
    }
    while cursor.element() {
        let value = cursor.value()?;
        match value.first()? {
            b'"' => out.text(tag, value.text()?),
            b'{' => part(out, tag, value, outer)?,
            _ => {}
        }
        out.spend(1 + cursor.take_steps())?;
    }
    Some(())
}

/// What a part may say, whatever its type.
#[derive(Default)]
struct Part<'b> {
    kind: Option<Value<'b>>,
    text: Option<Value<'b>>,
    thinking: Option<Value<'b>>,
    content: Option<Value<'b>>,
    name: Option<Value<'b>>,
    input: Option<Value<'b>>,
    media: Option<Value<'b>>,
}

impl<'b> Part<'b> {
    fn read(cursor: &mut Cursor<'b>) -> Option<Self> {
        let mut part = Self::default();
        while let Some(member) = cursor.member() {
            let value = cursor.value()?;
            let field = match member.name(&mut Name::default()) {
                b"type" => &mut part.kind,
                b"text" => &mut part.text,
                b"thinking" => &mut part.thinking,
                b"content" => &mut part.content,
                b"name" => &mut part.name,
                b"input" => &mut part.input,
                b"image_url" | b"input_audio" | b"audio_url" | b"video_url" | b"file" | b"source" | b"image"
                | b"audio" | b"video" | b"file_id" | b"file_data" | b"file_url" => &mut part.media,
                _ => continue,
            };
            *field = Some(value);
        }
        Some(part)
    }
}

fn part<'b>(out: &mut Writer<'_, 'b>, tag: Tag, value: Value<'b>, outer: bool) -> Option<()> {
    let mut cursor = Cursor::new(value);
    cursor.enter(b'{');
    let part = Part::read(&mut cursor)?;
    out.spend(cursor.take_steps())?;
    let kind = part.kind.and_then(Value::text).unwrap_or(Text { raw: b"", escaped: false });
    if let Some(text) = part.text.and_then(Value::text) {
        out.text(tag, text);
    } else if let Some(text) = part.thinking.and_then(Value::text) {
        out.text(Tag::Reasoning, text);
    } else if let Some(media) = part.media {
        if let Some(payload) = payload(out, media) {
            out.digest(kind, payload);
        }
    } else if let Some(input) = part.input {
        tool_name(out, part.name.and_then(Value::text));
        out.raw(Tag::ToolCalls, input.raw);
    } else if let Some(content) = part.content.filter(|_| outer) {
        parts(out, Tag::ToolResult, content, false)?;
    } else if !matches!(
        kind.name(&mut Name::default()),
        b"" | b"text" | b"input_text" | b"output_text" | b"tool_result"
    ) {
        out.digest(kind, Text { raw: value.raw, escaped: false });
    }
    Some(())
}

/// The URL or data that an image, a sound or a file is given by; all of an object that has neither. `None` for what
/// says nothing.
fn payload<'b>(out: &mut Writer<'_, '_>, media: Value<'b>) -> Option<Text<'b>> {
    if let Some(text) = media.text() {
        return (!text.raw.is_empty()).then_some(text);
    }
    let mut cursor = Cursor::new(media);
    let mut found = None;
    let mut members = 0;
    cursor.enter(b'{').then_some(())?;
    while let Some(member) = cursor.member() {
        members += 1;
        let value = cursor.value()?;
        if matches!(member.name(&mut Name::default()), b"url" | b"data" | b"file_data" | b"file_id") {
            found = value.text().or(found);
        }
    }
    // The next step asks whether there is any left.
    let _ = out.spend(cursor.take_steps());
    found.or((members > 0).then_some(Text { raw: media.raw, escaped: false }))
}

/// An item of a list that is an object: `{"text": …}` or `{"content": …}`.
pub(super) fn holder<'b>(out: &mut Writer<'_, 'b>, tag: Tag, cursor: &mut Cursor<'b>) -> Option<()> {
    cursor.enter(b'{');
    let part = Part::read(cursor)?;
    let text = part.text.filter(|value| value.text().is_some());
    optional(text.or(part.content), |value| content(out, tag, value))
}
