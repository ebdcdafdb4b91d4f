//! What is known of the backends at one moment: immutable, swapped whole.
//!
//! Everything that a request needs in order to be sent is here, ready: which usable backends serve a model, at which
//! address, under which name. Built only by the control plane.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3DefaultBuilder;

use crate::config::{BackendUrl, ModelType, Routing};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No probe has answered yet: its models are not known.
    Unknown,
    Up,
    Down,
    /// It was sent to sleep: it takes no requests until it is woken up.
    Sleeping,
    /// It gets no more requests, by the configuration; those that run there end.
    Draining,
}

impl State {
    pub fn as_str(self) -> &'static str {
        match self {
            State::Unknown => "unknown",
            State::Up => "up",
            State::Down => "down",
            State::Sleeping => "sleeping",
            State::Draining => "draining",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Backend {
    pub slot: u16,
    pub url: BackendUrl,
    /// The URL's text: the `server` label of metrics.
    pub name: String,
    /// `host:port` for the `Host` field.
    pub authority: String,
    /// Where to connect; the first is tried first. Empty when the name could not be resolved.
    pub addresses: Vec<SocketAddr>,
    pub models: Vec<String>,
    pub model_type: Option<ModelType>,
    pub label: Option<String>,
    pub state: State,
    /// It came back a moment ago: how much of its share it does not get yet, in thousandths.
    pub cold_permille: u16,
    /// Hash of the URL: the same in every process and after every restart.
    pub identity: u64,
}

/// A usable backend as a model's candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Index into [`Snapshot::backends`].
    pub backend: u16,
    /// Where the counters of this (server, model) stand in a shard.
    pub lane: u32,
}

/// What holds for all backends, and may change while the router runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rules {
    /// Alias → model.
    pub aliases: Vec<(String, String)>,
    pub routing: Routing,
}

/// A model that some known backend serves.
#[derive(Clone, Debug, Default)]
pub struct Served {
    /// The model's own name: an alias leads here too.
    pub name: String,
    /// Empty when all of them are down.
    pub usable: Vec<Member>,
}

/// Number of a served model within one snapshot.
pub type ModelNumber = u16;

#[derive(Default)]
pub struct Snapshot {
    pub backends: Vec<Arc<Backend>>,
    served: Vec<Served>,
    /// Names and aliases.
    names: HashMap<String, ModelNumber, Xxh3DefaultBuilder>,
    /// All usable backends, for requests that name no model.
    any: Served,
    /// Some backend has not told its models yet, so that an unknown model may still turn up.
    pub learning: bool,
    pub rules: Arc<Rules>,
}

impl Snapshot {
    /// Before anything is known: every model may still turn up.
    pub fn unknown() -> Self {
        Snapshot { learning: true, ..Snapshot::default() }
    }

    /// `lane(server, model)` gives the place of that pair's counters; the model is empty for requests that name none.
    pub fn new(backends: Vec<Arc<Backend>>, rules: Arc<Rules>, mut lane: impl FnMut(&str, &str) -> u32) -> Self {
        let mut snapshot = Snapshot { learning: backends.iter().any(|b| b.models.is_empty()), ..Snapshot::default() };
        for (index, backend) in (0..).zip(&backends) {
            let usable = backend.state == State::Up && !backend.addresses.is_empty();
            if usable {
                snapshot.any.usable.push(Member { backend: index, lane: lane(&backend.name, "") });
            }
            for model in &backend.models {
                let number = snapshot.number(model);
                if usable {
                    let member = Member { backend: index, lane: lane(&backend.name, model) };
                    snapshot.served[usize::from(number)].usable.push(member);
                }
            }
        }
        for (alias, model) in &rules.aliases {
            if let Some(&number) = snapshot.names.get(model) {
                snapshot.names.entry(alias.clone()).or_insert(number);
            }
        }
        snapshot.backends = backends;
        snapshot.rules = rules;
        snapshot
    }

    /// The number of a model, given one when it has none.
    fn number(&mut self, model: &str) -> ModelNumber {
        if let Some(&number) = self.names.get(model) {
            return number;
        }
        let number = ModelNumber::try_from(self.served.len()).unwrap_or(ModelNumber::MAX);
        self.served.push(Served { name: model.to_owned(), usable: Vec::new() });
        self.names.insert(model.to_owned(), number);
        number
    }

    /// The model of this name or alias.
    pub fn model(&self, name: &[u8]) -> Option<ModelNumber> {
        std::str::from_utf8(name).ok().and_then(|name| self.names.get(name)).copied()
    }

    /// The model that a request without one means: the only one that is served.
    pub fn sole_model(&self) -> Option<ModelNumber> {
        (self.served.len() == 1).then_some(0)
    }

    /// Who serves a model; without one, all usable backends.
    pub fn served(&self, model: Option<ModelNumber>) -> &Served {
        model.map_or(&self.any, |number| &self.served[usize::from(number)])
    }

    pub fn backend(&self, member: Member) -> &Arc<Backend> {
        &self.backends[usize::from(member.backend)]
    }

    /// Every name under which a model can be asked for, with the model's own name; sorted.
    pub fn model_names(&self) -> Vec<(&str, &str)> {
        let own = |&number: &ModelNumber| self.served[usize::from(number)].name.as_str();
        let mut names: Vec<_> = self.names.iter().map(|(name, number)| (name.as_str(), own(number))).collect();
        names.sort_unstable();
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backend(slot: u16, models: &[&str], state: State) -> Arc<Backend> {
        let url = BackendUrl::parse(&format!("http://127.0.0.1:{}", 9000 + slot)).expect("valid");
        Arc::new(Backend {
            slot,
            name: url.to_string(),
            authority: url.authority(),
            url,
            addresses: vec![SocketAddr::from(([127, 0, 0, 1], 9000 + slot))],
            models: models.iter().map(|&m| m.to_owned()).collect(),
            model_type: None,
            label: None,
            state,
            cold_permille: 0,
            identity: u64::from(slot),
        })
    }

    fn members(served: &Served) -> Vec<u16> {
        served.usable.iter().map(|m| m.backend).collect()
    }

    #[test]
    fn a_model_lists_its_usable_backends_and_an_alias_leads_to_it() {
        let backends = vec![
            backend(0, &["a", "b"], State::Up),
            backend(1, &["a"], State::Down),
            backend(2, &["a"], State::Up),
            backend(3, &[], State::Unknown),
        ];
        let aliases = vec![("x".to_owned(), "a".to_owned()), ("y".to_owned(), "gone".to_owned())];
        let snapshot = Snapshot::new(backends, Arc::new(Rules { aliases, ..Rules::default() }), |_, _| 0);
        let a = snapshot.model(b"a");
        assert_eq!(members(snapshot.served(a)), [0, 2]);
        assert_eq!(a, snapshot.model(b"x"));
        assert_eq!(members(snapshot.served(snapshot.model(b"b"))), [0]);
        assert_eq!(members(snapshot.served(None)), [0, 2]);
        assert!(snapshot.model(b"y").is_none() && snapshot.model(b"\xff").is_none() && snapshot.sole_model().is_none());
        assert!(snapshot.learning);
    }

    #[test]
    fn a_known_model_whose_backends_are_down_is_still_known() {
        let snapshot = Snapshot::new(vec![backend(0, &["a"], State::Down)], Arc::default(), |_, _| 0);
        assert_eq!(members(snapshot.served(snapshot.model(b"a"))), [0u16; 0]);
        assert!(snapshot.model(b"a").is_some() && snapshot.sole_model() == snapshot.model(b"a"));
        assert!(!snapshot.learning && snapshot.served(None).usable.is_empty());
    }
}
