//! Discovery of backends in Kubernetes: the ready pods that a label selector names, each at its own address.
//!
//! A pod is a backend while it is ready and not terminating; its models are asked from it like those of any other backend.
//! While the API server is away, the backends stay as they were last known: an engine does not stop because nobody can say
//! that it runs. After such a gap the whole list comes anew, and what is not in it is gone.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};

use super::plane::Plane;
use crate::config::{BackendUrl, ConfigError, Kubernetes, MAX_BACKENDS, StaticBackend};

/// Between two attempts to find the cluster's configuration.
const PAUSE: Duration = Duration::from_secs(5);

/// The label that names the model in the stack's Helm chart; shown in `/engines`.
const LABEL: &str = "model";

/// Follows the pods until the process ends.
pub(super) async fn run(plane: Arc<Plane>, options: Kubernetes) {
    let client = client().await;
    let pods: Api<Pod> = Api::namespaced(client, &options.namespace);
    let mut asked = watcher::Config::default().labels(&options.label_selector);
    asked.timeout = options.watch_timeout_s;
    tracing::info!("following the pods '{}' of the namespace {}", options.label_selector, options.namespace);
    let mut events = pin!(watcher(pods, asked).default_backoff());
    let mut known = Pods::new(options.port);
    let mut away = false;
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                if std::mem::take(&mut away) {
                    tracing::info!("the Kubernetes API answers again");
                }
                if let Some(backends) = known.take_in(event) {
                    plane.set_backends(&backends);
                }
            }
            // A stream that ends is begun anew; that is not worth a line.
            Err(watcher::Error::WatchFailed(_)) => {}
            Err(error) => {
                if !std::mem::replace(&mut away, true) {
                    tracing::error!(
                        "the Kubernetes API can't be asked for pods, the backends stay as they are: {}",
                        ConfigError::of_library(&error.to_string())
                    );
                }
            }
        }
    }
}

/// From the pod's service account, or else from KUBECONFIG.
async fn client() -> Client {
    loop {
        match Client::try_default().await {
            Ok(client) => return client,
            Err(error) => {
                tracing::error!(
                    "--service-discovery k8s: no access to a cluster (a pod's service account, or KUBECONFIG): {}; \
                     next attempt in {} s",
                    // A file of access data may be quoted in it.
                    ConfigError::of_library(&error.to_string()),
                    PAUSE.as_secs()
                );
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// The pods that are backends, by name.
struct Pods {
    port: u16,
    ready: BTreeMap<String, StaticBackend>,
    /// What a list that has begun and not ended has named so far.
    listed: Option<BTreeMap<String, StaticBackend>>,
    /// More than the router can know were ready at the last look.
    too_many: bool,
}

impl Pods {
    fn new(port: u16) -> Self {
        Pods { port, ready: BTreeMap::new(), listed: None, too_many: false }
    }

    /// The backends, if the event changed them.
    fn take_in(&mut self, event: Event<Pod>) -> Option<Vec<StaticBackend>> {
        let before = self.ready.clone();
        match event {
            Event::Init => self.listed = Some(BTreeMap::new()),
            Event::InitApply(pod) => {
                if let (Some(listed), Some((name, backend))) = (&mut self.listed, backend(&pod, self.port)) {
                    listed.insert(name, backend);
                }
            }
            Event::InitDone => self.ready = self.listed.take()?,
            Event::Apply(pod) => match backend(&pod, self.port) {
                Some((name, backend)) => _ = self.ready.insert(name, backend),
                None => _ = self.ready.remove(pod.metadata.name.as_deref()?),
            },
            Event::Delete(pod) => _ = self.ready.remove(pod.metadata.name.as_deref()?),
        }
        (before != self.ready).then(|| self.backends())
    }

    fn backends(&mut self) -> Vec<StaticBackend> {
        let too_many = self.ready.len() > MAX_BACKENDS;
        if too_many && !self.too_many {
            tracing::error!("{} pods are ready; the router knows {MAX_BACKENDS} backends at most", self.ready.len());
        }
        self.too_many = too_many;
        // While a pod is replaced, two of them can name one address for a moment.
        let by_url: BTreeMap<String, &StaticBackend> = self.ready.values().map(|b| (b.url.to_string(), b)).collect();
        by_url.into_values().take(MAX_BACKENDS).cloned().collect()
    }
}

/// The pod as a backend, if it is one now: it has an address, is ready, and is not being ended.
fn backend(pod: &Pod, port: u16) -> Option<(String, StaticBackend)> {
    let name = pod.metadata.name.clone()?;
    let status = pod.status.as_ref()?;
    let ready = status.conditions.iter().flatten().any(|is| is.type_ == "Ready" && is.status == "True");
    if !ready || pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let url = match status.pod_ip.as_deref()?.parse().ok()? {
        IpAddr::V4(ip) => format!("http://{ip}:{port}"),
        IpAddr::V6(ip) => format!("http://[{ip}]:{port}"),
    };
    let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get(LABEL)).cloned();
    Some((name, StaticBackend::discovered(BackendUrl::parse(&url).ok()?, label)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, ip: &str, ready: bool, terminating: bool) -> Pod {
        let mut pod = serde_json::json!({
            "metadata": { "name": name, "labels": { "model": "llama" } },
            "status": { "podIP": ip, "conditions": [
                { "type": "Initialized", "status": "True" },
                { "type": "Ready", "status": if ready { "True" } else { "False" } },
            ] },
        });
        if terminating {
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        }
        serde_json::from_value(pod).expect("a pod")
    }

    fn urls(backends: Option<Vec<StaticBackend>>) -> Option<Vec<String>> {
        backends.map(|all| all.iter().map(|backend| backend.url.to_string()).collect())
    }

    #[test]
    fn only_pods_that_are_ready_and_not_terminating_are_backends() {
        let mut pods = Pods::new(8000);
        let mut apply = |pod: Pod| urls(pods.take_in(Event::Apply(pod)));
        assert_eq!(apply(pod("a", "10.0.0.1", false, false)), None);
        assert_eq!(apply(pod("a", "10.0.0.1", true, false)), Some(vec!["http://10.0.0.1:8000".to_owned()]));
        assert_eq!(apply(pod("a", "10.0.0.1", true, false)), None, "nothing new");
        assert_eq!(
            apply(pod("b", "fd00::2", true, false)),
            Some(vec!["http://10.0.0.1:8000".to_owned(), "http://[fd00::2]:8000".to_owned()])
        );
        assert_eq!(apply(pod("a", "10.0.0.1", true, true)), Some(vec!["http://[fd00::2]:8000".to_owned()]));
        assert_eq!(apply(pod("b", "fd00::2", false, false)), Some(vec![]));
    }

    #[test]
    fn a_new_list_replaces_the_old_one_only_when_it_is_whole() {
        let mut pods = Pods::new(80);
        pods.take_in(Event::Apply(pod("a", "10.0.0.1", true, false)));
        assert_eq!(urls(pods.take_in(Event::Init)), None);
        assert_eq!(urls(pods.take_in(Event::InitApply(pod("b", "10.0.0.2", true, false)))), None);
        assert_eq!(urls(pods.take_in(Event::InitDone)), Some(vec!["http://10.0.0.2:80".to_owned()]));
        assert_eq!(urls(pods.take_in(Event::Delete(pod("b", "10.0.0.2", true, false)))), Some(vec![]));
    }

    #[test]
    fn an_address_that_two_pods_name_is_one_backend() {
        let mut pods = Pods::new(80);
        pods.take_in(Event::Apply(pod("old", "10.0.0.1", true, false)));
        assert_eq!(urls(pods.take_in(Event::Apply(pod("new", "10.0.0.1", true, false)))).map(|all| all.len()), Some(1));
    }
}
