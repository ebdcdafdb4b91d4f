//! Feeds tagged pieces of a prompt to the chunks.
//!
//! A tag is two bytes, the first of which never occurs in UTF-8: text cannot forge one. Invariant: a message that has
//! nothing of its own adds nothing, not even its role, so that strangers' empty messages share no chunk.

use super::chunks::Chunks;
use super::cursor::Text;
use super::namespace::text_hash;

const TAG_LEAD: u8 = 0xff;

/// So many token ids are fed at once.
const TOKENS: usize = 128;

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
}

impl<'c, 'b> Writer<'c, 'b> {
    pub(super) fn new(chunks: &'c mut Chunks) -> Self {
        Self { chunks, role: None }
    }

    /// A message begins; its role is written with its first piece.
    pub(super) fn message(&mut self, role: Option<Text<'b>>) {
        self.role = Some(role);
    }

    pub(super) fn tag(&mut self, tag: Tag) {
        if let Some(role) = self.role.take() {
            self.chunks.feed(&[TAG_LEAD, Tag::Message as u8]);
            if let Some(role) = role {
                role.decode(|piece| self.chunks.feed(piece));
            }
        }
        self.chunks.feed(&[TAG_LEAD, tag as u8]);
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
        text.decode(|piece| self.chunks.feed(piece));
    }

    /// JSON as it stands.
    pub(super) fn raw(&mut self, tag: Tag, json: &[u8]) {
        self.tag(tag);
        self.chunks.feed(json);
    }

    /// What is too long or too foreign to be keyed by its bytes: its digest, apart for each kind.
    pub(super) fn digest(&mut self, kind: Text<'_>, payload: Text<'_>) {
        self.tag(Tag::Media);
        let digest = text_hash(payload, text_hash(kind, 0));
        self.chunks.feed(&digest.to_le_bytes());
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
        }
    }
}
