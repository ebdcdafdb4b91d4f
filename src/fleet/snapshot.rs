//! What is known of the backends at one moment: immutable, swapped whole.
//!
//! Everything that a request needs in order to be sent is here, ready: which usable backends serve a model, at which
//! address, under which name. Built only by the control plane.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3DefaultBuilder;

use crate::config::{BackendUrl, ModelType};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No probe has answered yet: its models are not known.
    Unknown,
    Up,
    Down,
    /// Takes no requests for a while, without being down.
    Sleeping,
}

impl State {
    pub fn as_str(self) -> &'static str {
        match self {
            State::Unknown => "unknown",
            State::Up => "up",
            State::Down => "down",
            State::Sleeping => "sleeping",
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

/// A model that some known backend serves.
#[derive(Clone, Debug, Default)]
pub struct Served {
    /// The model's own name: an alias leads here too.
    pub name: String,
    /// Empty when all of them are down.
    pub usable: Vec<Member>,
}

#[derive(Default)]
pub struct Snapshot {
    pub backends: Vec<Arc<Backend>>,
    models: HashMap<String, Arc<Served>, Xxh3DefaultBuilder>,
    /// The one model, when just one is served.
    sole: Option<Arc<Served>>,
    /// All usable backends, for requests that name no model.
    pub any: Served,
    /// Some backend has not told its models yet, so that an unknown model may still turn up.
    pub learning: bool,
}

impl Snapshot {
    /// `lane(server, model)` gives the place of that pair's counters; the model is empty for requests that name none.
    pub fn new(
        backends: Vec<Arc<Backend>>,
        aliases: &[(String, String)],
        mut lane: impl FnMut(&str, &str) -> u32,
    ) -> Self {
        let mut served: HashMap<String, Served> = HashMap::new();
        let mut any = Served::default();
        for (index, backend) in backends.iter().enumerate() {
            let index = u16::try_from(index).expect("MAX_BACKENDS fits u16");
            let usable = backend.state == State::Up && !backend.addresses.is_empty();
            if usable {
                any.usable.push(Member { backend: index, lane: lane(&backend.name, "") });
            }
            for model in &backend.models {
                let entry =
                    served.entry(model.clone()).or_insert_with(|| Served { name: model.clone(), usable: Vec::new() });
                if usable {
                    entry.usable.push(Member { backend: index, lane: lane(&backend.name, model) });
                }
            }
        }
        let learning = backends.iter().any(|b| b.models.is_empty());
        let mut models: HashMap<String, Arc<Served>, _> =
            served.into_iter().map(|(name, served)| (name, Arc::new(served))).collect();
        let sole = (models.len() == 1).then(|| models.values().next().cloned()).flatten();
        for (alias, model) in aliases {
            if let Some(served) = models.get(model).cloned() {
                models.entry(alias.clone()).or_insert(served);
            }
        }
        Snapshot { backends, models, sole, any, learning }
    }

    /// The model of this name or alias.
    pub fn model(&self, name: &[u8]) -> Option<&Arc<Served>> {
        std::str::from_utf8(name).ok().and_then(|name| self.models.get(name))
    }

    /// The model that a request without one means.
    pub fn sole_model(&self) -> Option<&Arc<Served>> {
        self.sole.as_ref()
    }

    pub fn backend(&self, member: Member) -> &Arc<Backend> {
        &self.backends[usize::from(member.backend)]
    }

    /// Every name under which a model can be asked for, with the model's own name; sorted.
    pub fn model_names(&self) -> Vec<(&str, &str)> {
        let mut names: Vec<_> =
            self.models.iter().map(|(name, served)| (name.as_str(), served.name.as_str())).collect();
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
        let snapshot =
            Snapshot::new(backends, &[("x".to_owned(), "a".to_owned()), ("y".to_owned(), "gone".to_owned())], |_, _| 0);
        let a = snapshot.model(b"a").expect("known");
        assert_eq!(members(a), [0, 2]);
        assert!(Arc::ptr_eq(a, snapshot.model(b"x").expect("alias")));
        assert_eq!(members(snapshot.model(b"b").expect("known")), [0]);
        assert_eq!(members(&snapshot.any), [0, 2]);
        assert!(snapshot.model(b"y").is_none() && snapshot.model(b"\xff").is_none() && snapshot.sole_model().is_none());
        assert!(snapshot.learning);
    }

    #[test]
    fn a_known_model_whose_backends_are_down_is_still_known() {
        let snapshot = Snapshot::new(vec![backend(0, &["a"], State::Down)], &[], |_, _| 0);
        assert_eq!(members(snapshot.model(b"a").expect("known")), [0u16; 0]);
        assert_eq!(snapshot.sole_model().map(|s| s.name.as_str()), Some("a"));
        assert!(!snapshot.learning && snapshot.any.usable.is_empty());
    }
}
