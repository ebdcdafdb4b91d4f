//! What a request needs while it runs, lent from the worker's store: parsed heads, the scan of its body, its key, the
//! candidates. Everything in it is reused, so that a request in the steady state allocates nothing; an idle connection
//! holds none.
//!
//! Invariant: a request sees nothing of the request that had the scratch before. [`Scratch::begin`] empties every field, and
//! names each, so that a field that is added must be thought of. Builds with debug assertions fill what nobody holds with
//! values that no request can have: whatever is read before it is written then shows as a wrong choice or a panic.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use super::usage::Tail;
use crate::fleet::snapshot::Member;
use crate::http::head::{RequestHead, ResponseHead};
use crate::prompt::{Chunks, Scan};
use crate::route::Candidate;
use crate::route::ttft::Outlook;
use crate::shared::Shared;
use crate::trie::Matches;

/// How many unused leases a worker keeps.
const KEPT: usize = 256;

/// Text and keys that grew beyond this are not kept: one giant request must not hold memory for ever.
const KEPT_BYTES: usize = 256 << 10;

pub(super) struct Scratch {
    pub(super) request: RequestHead,
    pub(super) response: ResponseHead,
    pub(super) scan: Scan,
    pub(super) chunks: Chunks,
    pub(super) matches: Matches,
    pub(super) candidates: Vec<Candidate>,
    pub(super) outlooks: Vec<Outlook>,
    pub(super) members: Vec<Member>,
    /// The end of the answer's body, when somebody wants to know it.
    pub(super) tail: Tail,
    /// Decoded strings of the body.
    pub(super) text: Vec<u8>,
    /// The head that is being sent.
    pub(super) out: Vec<u8>,
    pub(super) request_id: Vec<u8>,
}

#[allow(clippy::vec_box, reason = "a scratch is moved at every request, and it is large")]
type Shelf = Rc<RefCell<Vec<Box<Scratch>>>>;

pub(super) struct Leases {
    shared: &'static Shared,
    free: Shelf,
}

pub(super) struct Lease {
    scratch: Option<Box<Scratch>>,
    home: Shelf,
}

impl Leases {
    pub(super) fn new(shared: &'static Shared) -> Self {
        Leases { shared, free: Rc::default() }
    }

    pub(super) fn take(&self) -> Lease {
        let mut scratch = self.free.borrow_mut().pop().unwrap_or_else(|| {
            Box::new(Scratch {
                request: RequestHead::default(),
                response: ResponseHead::default(),
                scan: Scan::default(),
                chunks: Chunks::new(self.shared.config.routing.prefix_chunk_bytes, self.shared.hash_keys()),
                matches: Matches::new(self.shared.fleet.slots()),
                candidates: Vec::new(),
                outlooks: Vec::new(),
                members: Vec::new(),
                tail: Tail::default(),
                text: Vec::new(),
                out: Vec::with_capacity(1024),
                request_id: Vec::with_capacity(64),
            })
        });
        scratch.begin();
        Lease { scratch: Some(scratch), home: Rc::clone(&self.free) }
    }
}

impl Scratch {
    /// Forgets the request before.
    fn begin(&mut self) {
        let Scratch {
            request,
            response,
            scan,
            chunks,
            matches,
            candidates,
            outlooks,
            members,
            tail,
            text,
            out,
            request_id,
        } = self;
        request.clear();
        response.clear();
        scan.clear();
        chunks.start(0);
        matches.clear();
        candidates.clear();
        outlooks.clear();
        members.clear();
        tail.clear();
        text.clear();
        out.clear();
        request_id.clear();
    }

    /// Fills it with what no request has: an unknown method, a body's fields beyond any body, every backend holding more
    /// than any key is long, backends that do not exist, figures that are no numbers, text that is no UTF-8.
    #[cfg(debug_assertions)]
    fn poison(&mut self) {
        const NO_TEXT: &[u8] = b"\xff\xfeof the request before\xff\"prompt_tokens\":9,\"cached_tokens\":9 ";
        self.request.clear();
        self.request.method = crate::http::head::Method::Other;
        self.response.clear();
        self.response.status = u16::MAX;
        self.scan.poison();
        self.chunks.start(u64::MAX);
        self.chunks.feed(NO_TEXT);
        self.matches.poison();
        self.candidates.clear();
        self.candidates.push(Candidate { matched_bytes: u64::MAX, ..Candidate::default() });
        self.outlooks.clear();
        self.outlooks.push(Outlook::NO_NUMBERS);
        self.members.clear();
        self.members.push(Member { backend: u16::MAX, lane: u32::MAX });
        self.tail.clear();
        self.tail.push(NO_TEXT);
        for text in [&mut self.text, &mut self.out, &mut self.request_id] {
            text.clear();
            text.extend_from_slice(NO_TEXT);
        }
    }
}

impl Deref for Lease {
    type Target = Scratch;

    fn deref(&self) -> &Scratch {
        self.scratch.as_ref().expect("present until dropped")
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut Scratch {
        self.scratch.as_mut().expect("present until dropped")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        #[allow(unused_mut, reason = "builds with debug assertions write into it")]
        let Some(mut scratch) = self.scratch.take() else { return };
        #[cfg(debug_assertions)]
        scratch.poison();
        let mut home = self.home.borrow_mut();
        let large = scratch.text.capacity() > KEPT_BYTES || std::mem::size_of_val(scratch.chunks.key()) > KEPT_BYTES;
        if home.len() < KEPT && !large {
            home.push(scratch);
        }
    }
}
