//! What a router can see of the backends when it has to choose.

/// One backend at one moment, for one request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct View {
    /// Requests sent to it that have not ended.
    pub in_flight: u32,
    /// Those of them without a first token.
    pub waiting: u32,
    /// Prompt tokens of those that were not in its cache when they were sent.
    pub pending_tokens: u64,
    /// Prompt tokens of all in flight.
    pub kv_tokens: u64,
    /// Share of its KV memory that running requests hold.
    pub kv_use: f64,
    /// Requests sent to it within the window of the QPS.
    pub in_window: u64,
    /// Leading prompt tokens that were ever sent to it: an approximate index without eviction.
    pub sent_tokens: u32,
    /// Leading prompt tokens that its cache has: an exact index, as from the engine's own events.
    pub cached_tokens: u32,
}

/// What a router counts of one backend by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ledger {
    pub in_flight: u32,
    pub waiting: u32,
    pub pending_tokens: u64,
    pub kv_tokens: u64,
}

impl Ledger {
    pub fn sent(&mut self, prompt_tokens: u32, uncached_tokens: u32) {
        self.in_flight += 1;
        self.waiting += 1;
        self.pending_tokens += u64::from(uncached_tokens);
        self.kv_tokens += u64::from(prompt_tokens);
    }

    pub fn first_token(&mut self, uncached_tokens: u32) {
        self.waiting -= 1;
        self.pending_tokens -= u64::from(uncached_tokens);
    }

    pub fn finished(&mut self, prompt_tokens: u32) {
        self.in_flight -= 1;
        self.kv_tokens -= u64::from(prompt_tokens);
    }

    pub fn plus(&self, other: &Ledger) -> Ledger {
        Ledger {
            in_flight: self.in_flight + other.in_flight,
            waiting: self.waiting + other.waiting,
            pending_tokens: self.pending_tokens + other.pending_tokens,
            kv_tokens: self.kv_tokens + other.kv_tokens,
        }
    }
}
