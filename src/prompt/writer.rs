//! Feeds tagged pieces of a prompt to the chunks.
//!
//! A tag is two bytes, the first of which never occurs in UTF-8: text cannot forge one. Invariant: a message that has
//! nothing of its own adds nothing, not even its role, so that strangers' empty messages share no chunk.

use super::chunks::Chunks;
use super::cursor::Text;
use super::namespace::text_hash;

const TAG_LEAD: u8 = 0xff;

/// The roles of all engines are no longer.
const ROLE_BYTES: usize = 12;

/// So many token ids are fed at once.
const TOKENS: usize = 128;

/// Work for one key: what is stepped over, one for each value and name. Some thousand messages take a part of it; a body made to
/// be slow is keyed by its beginning.
const WORK: u32 = 1 << 16;
/// Bytes of text with escapes, and token ids, that are as much work as a value.
const ESCAPED_BYTES: usize = 64;
const IDS: usize = 16;

#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(super) enum Tag {
    Tools = b't',
    System = b's',
    EarlierResponse = b'e',
    Message = b'm',
    Text = b'x',
    ToolResult = b'o',
    Media = b'd',
    ToolCalls = b'c',
    Reasoning = b'r',
    Query = b'q',
    Item = b'i',
    Tokens = b'k',
}

pub(super) struct Writer<'c, 'b> {
    chunks: &'c mut Chunks,
    /// The role of a message that has added nothing yet; `Some(None)` when it has none.
    role: Option<Option<Text<'b>>>,
    /// What is left of [`WORK`].
    work: u32,
}

impl<'c, 'b> Writer<'c, 'b> {
    pub(super) fn new(chunks: &'c mut Chunks) -> Self {
        Self { chunks, role: None, work: WORK }
    }

    /// Takes so many steps off what is left; `None` when there is nothing left: then the key ends.
    #[inline(always)]
    pub(super) fn spend(&mut self, steps: u32) -> Option<()> {
        self.work = self.work.saturating_sub(steps);
        (self.work > 0).then_some(())
    }

    /// A message begins; its role is written with its first piece.
    pub(super) fn message(&mut self, role: Option<Text<'b>>) {
        self.role = Some(role);
    }

    #[inline]
    pub(super) fn tag(&mut self, tag: Tag) {
        match self.role.take() {
            Some(Some(role)) => self.head(role, tag),
            Some(None) => self.chunks.feed_few(&[TAG_LEAD, Tag::Message as u8, TAG_LEAD, tag as u8], 4),
            None => self.chunks.feed_few(&[TAG_LEAD, tag as u8], 2),
        }
    }

    /// A message's role and its first tag: mostly so short that they are fed as one piece.
    #[inline]
    fn head(&mut self, role: Text<'_>, tag: Tag) {
        let (first, last) = ([TAG_LEAD, Tag::Message as u8], [TAG_LEAD, tag as u8]);
        let len = role.raw.len();
        let mut head = [0; 2 + ROLE_BYTES + 2];
        match head.get_mut(2..2 + len) {
            Some(room) if len <= ROLE_BYTES && !role.escaped => {
                room.copy_from_slice(role.raw);
                head[..2].copy_from_slice(&first);
                head[2 + len..][..2].copy_from_slice(&last);
                self.chunks.feed_few(&head, len + 4);
            }
            _ => {
                self.chunks.feed(&first);
                role.decode(|piece| self.chunks.feed(piece));
                self.chunks.feed(&last);
            }
        }
    }

    /// Decoded text under a tag; empty text adds nothing.
    pub(super) fn text(&mut self, tag: Tag, text: Text<'_>) {
        if !text.raw.is_empty() {
            self.tag(tag);
            self.bare(text);
        }
    }

    /// Decoded text without a tag.
    pub(super) fn bare(&mut self, text: Text<'_>) {
        let text = if text.escaped { self.affordable(text) } else { text };
        text.decode(|piece| self.chunks.feed(piece));
    }

    /// As much of a text with escapes as there is work left for.
    fn affordable<'t>(&mut self, text: Text<'t>) -> Text<'t> {
        let most = self.work as usize * ESCAPED_BYTES;
        self.work = self.work.saturating_sub((text.raw.len() / ESCAPED_BYTES) as u32);
        Text { raw: &text.raw[..text.raw.len().min(most)], ..text }
    }

    /// JSON as it stands.
    pub(super) fn raw(&mut self, tag: Tag, json: &[u8]) {
        self.tag(tag);
        self.chunks.feed(json);
    }

    /// What is too long or too foreign to be keyed by its bytes: its digest, apart for each kind.
    pub(super) fn digest(&mut self, kind: Text<'_>, payload: Text<'_>) {
        self.tag(Tag::Media);
        let digest = text_hash(payload, text_hash(kind, self.chunks.keys().media));
        self.chunks.feed(&digest.to_le_bytes());
        self.chunks.count_medium(payload.raw.len());
    }

    /// Token ids, as `next` gives them, four bytes each.
    #[inline(always)]
    pub(super) fn tokens(&mut self, mut next: impl FnMut() -> Option<u32>) {
        let mut bytes = [0; 4 * TOKENS];
        loop {
            let mut len = 0;
            for place in bytes.as_chunks_mut().0 {
                let Some(id) = next() else { return self.chunks.feed(&bytes[..len]) };
                *place = id.to_be_bytes();
                len += 4;
            }
            self.chunks.feed(&bytes);
            if self.spend((TOKENS / IDS) as u32).is_none() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::secret::UNKEYED;
    use super::*;

    #[test]
    fn a_role_of_any_length_is_fed_between_its_tags() {
        const ROLE: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";
        let (mut chunks, mut known) = (Chunks::new(16, &UNKEYED), Chunks::new(16, &UNKEYED));
        for before in 0..40 {
            for len in 0..ROLE.len() {
                let role = Text { raw: &ROLE[..len], escaped: false };
                chunks.start(1);
                chunks.feed(&ROLE[..before.min(ROLE.len())]);
                let mut writer = Writer::new(&mut chunks);
                writer.message(Some(role));
                writer.text(Tag::Text, Text { raw: b"one", escaped: false });
                writer.text(Tag::Text, Text { raw: ROLE, escaped: false });
                known.start(1);
                let bytes = [&ROLE[..before.min(ROLE.len())], b"\xffm", role.raw, b"\xffxone\xffx", ROLE].concat();
                known.feed(&bytes);
                assert_eq!((chunks.key(), chunks.bytes()), (known.key(), bytes.len() as u64), "{before} {len}");
            }
        }
    }
}
