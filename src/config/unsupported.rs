//! Flags of the vLLM production stack's router that this router does not have.
//!
//! A user who brings such a flag is told its name and what to do, before anything starts: it is never silently accepted.

/// (flag, what to do instead)
const UNSUPPORTED: &[(&str, &str)] = &[
    ("--callbacks", "custom callbacks run Python in the router; leave it out"),
    ("--enable-batch-api", "the batch API is not served; leave it out"),
    ("--batch-processor", "the batch API is not served; leave it out"),
    ("--file-storage-class", "the files API is not served; leave it out"),
    ("--file-storage-path", "the files API is not served; leave it out"),
    ("--sentry-dsn", "leave it out"),
    ("--sentry-traces-sample-rate", "leave it out"),
    ("--sentry-profile-session-sample-rate", "leave it out"),
    ("--otel-endpoint", "traceparent is passed through to the engines; leave it out"),
    ("--otel-service-name", "traceparent is passed through to the engines; leave it out"),
    ("--otel-secure", "traceparent is passed through to the engines; leave it out"),
    ("--feature-gates", "leave it out"),
    ("--semantic-cache-model", "leave it out"),
    ("--semantic-cache-dir", "leave it out"),
    ("--semantic-cache-threshold", "leave it out"),
    ("--lmcache-controller-port", "the router keeps its own index of prefixes; leave it out"),
    ("--lmcache-health-check-interval", "the router keeps its own index of prefixes; leave it out"),
    ("--lmcache-worker-timeout", "the router keeps its own index of prefixes; leave it out"),
    ("--kv-aware-threshold", "use --routing-logic prefixaware with --prefix-min-match-length"),
    ("--tokenizer-name", "the router works on bytes and needs no tokenizer; leave it out"),
    ("--block-reuse-timeout", "leave it out"),
    ("--drop-params", "bodies are passed on as they are; leave it out"),
    ("--external-providers-config", "leave it out"),
    ("--enable-service-discovery-fallback", "leave it out"),
];

/// The sentence for the first argument that is such a flag.
pub(super) fn find<'a>(args: impl IntoIterator<Item = &'a str>) -> Option<String> {
    args.into_iter().find_map(|arg| {
        let flag = arg.split_once('=').map_or(arg, |(flag, _)| flag);
        let (_, instead) = UNSUPPORTED.iter().find(|(name, _)| *name == flag)?;
        Some(format!("{flag} is not supported by trieway: {instead}"))
    })
}
