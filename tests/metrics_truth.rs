//! `/metrics` tells the truth: traffic of known counts through the real router, and every family compared with them.
//!
//! A family that is not compared here stands in [`ELSEWHERE`], with the place that does it.

mod support;

use std::time::Duration;

use support::{Client, Origin, Router, completion, eventually, origin::ok, text};

/// Families that another test compares with known figures, or that have a reason not to be compared.
const ELSEWHERE: &[(&str, &[&str])] = &[
    ("tests/outliers.rs", &["trieway_backend_ejected", "trieway_outlier_ejections_total"]),
    // What engines say of themselves: an engine that says it is needed.
    (
        "src/control/exposition_tests.rs",
        &[
            "vllm:num_requests_waiting",
            "vllm:gpu_prefix_cache_hit_rate",
            "vllm:gpu_prefix_cache_hits_total",
            "vllm:gpu_prefix_cache_queries_total",
            "trieway_engine_requests_running",
            "trieway_engine_kv_cache_usage_ratio",
            "trieway_prefill_busy_ratio",
            "trieway_prompt_bytes_per_token",
            // A backend that restarts in the instant between the choice and the connection: no traffic can time that.
            "trieway_trie_void_inserts_total",
        ],
    ),
    // What `ttft` learns, and the shadow policy.
    (
        "tests/ttft.rs",
        &[
            "trieway_predicted_cached_tokens_total",
            "trieway_reported_cached_tokens_total",
            "trieway_prefill_queue_seconds",
            "trieway_prefill_time_factor",
            "trieway_cache_reach_bytes",
            "trieway_shadow_requests_total",
            "trieway_shadow_prompt_bytes_total",
            "trieway_shadow_matched_bytes_total",
        ],
    ),
    ("tests/splice.rs", &["trieway_worker_spliced_bytes_total", "trieway_worker_splice_pipes"]),
    ("tests/coalescing.rs", &["trieway_worker_coalesced_reads_total"]),
    ("tests/workers.rs", &["trieway_worker_handed_over_connections_total"]),
    ("tests/exhaustion.rs", &["trieway_panics_total"]),
    // Compared nowhere: only the kernel makes an accept fail, and the limits see to it that it has no reason to.
    ("src/data/accept.rs", &["trieway_accept_errors_total"]),
];

/// One `/metrics`, read once.
struct Page(Vec<(String, f64)>);

impl Page {
    fn of(router: &Router) -> Page {
        let text = router.get("/metrics").body_text();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Page(
            lines
                .map(|line| line.rsplit_once(' ').expect("a sample"))
                .map(|(s, v)| (s.to_owned(), v.parse().expect("a number")))
                .collect(),
        )
    }

    /// The sum of the samples of this name whose labels hold all of these.
    fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        let fits = |sample: &str| {
            let (family, rest) = sample.split_at(sample.find('{').unwrap_or(sample.len()));
            family == name && labels.iter().all(|label| rest.contains(label))
        };
        self.0.iter().filter(|(sample, _)| fits(sample)).map(|(_, value)| value).sum()
    }

    #[track_caller]
    fn is(&self, name: &str, labels: &[&str], expected: f64) {
        let found = self.sum(name, labels);
        assert!((found - expected).abs() < 1e-6, "{name} {labels:?} is {found} and not {expected}");
    }

    #[track_caller]
    fn is_within(&self, name: &str, labels: &[&str], low: f64, high: f64) {
        let found = self.sum(name, labels);
        assert!((low..=high).contains(&found), "{name} {labels:?} is {found} and not from {low} to {high}");
    }
}

/// Answers as the prompt says.
fn scripted() -> Origin {
    Origin::start(&["m", "x"], |peer, received| {
        let body = String::from_utf8_lossy(&received.body).into_owned();
        match body.split('!').nth(1) {
            Some("404") => peer.send("HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno"),
            Some("500") => peer.send("HTTP/1.1 500 Oh\r\nContent-Length: 3\r\n\r\nbad"),
            Some("stream") => {
                peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n");
                for _ in 0..2 {
                    std::thread::sleep(Duration::from_millis(30));
                    peer.send("5\r\nagain\r\n");
                }
                peer.send("0\r\n\r\n")
            }
            Some("broken") => {
                peer.send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nfour");
                false
            }
            Some("garbage") => {
                peer.send("HTTP/1.1 abc\r\n\r\n");
                false
            }
            Some("hold") => {
                peer.wait_for_end();
                false
            }
            Some("begin") => {
                peer.send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n");
                peer.wait_for_end();
                false
            }
            _ => peer.send(ok("{}")),
        }
    })
}

#[test]
fn counters_are_the_traffic_that_there_was() {
    let origin = scripted();
    let server = format!("server=\"{}\"", origin.url());
    let router = Router::in_front_of(&[origin.url()], &["--workers", "1"]);
    let before = Page::of(&router);
    let mut client = router.client();
    let mut bodies = 0;
    let mut send = |client: &mut Client, model: &str, prompt: &str| {
        let body = completion(model, prompt);
        bodies += body.len();
        client.send_post("/v1/completions", &body, "").response()
    };
    // The first is cold; three that follow find 512 of its 600 bytes.
    for _ in 0..4 {
        assert_eq!(send(&mut client, "m", &text(1, 600)).status, 200);
    }
    for (prompt, status) in [("!404!", 404), ("!500!", 500), ("!stream!", 200)] {
        assert_eq!(send(&mut client, "m", prompt).status, status);
    }
    assert!(!send(&mut router.client(), "m", "!broken!").complete);
    assert_eq!(send(&mut router.client(), "m", "!garbage!").status, 502);
    for _ in 0..2 {
        assert_eq!(send(&mut client, "x", "short").status, 200);
    }
    let body = completion("x", "!hold!");
    bodies += body.len();
    let mut leaving = router.client();
    leaving.send_post("/v1/completions", &body, "");
    eventually("it is there", || origin.count() == 12);
    leaving.reset();
    eventually("it is noticed", || !origin.gone().is_empty());
    assert_eq!(
        (client.post("/v1/completions", "[]").status, client.post("/v1/chat/completions", "{\"model\":\"?\"}").status),
        (400, 404)
    );
    eventually("all is counted", || Page::of(&router).sum("trieway_client_aborts_total", &[]) == 1.0);

    let page = Page::of(&router);
    page.is("vllm:num_incoming_requests_total", &["model=\"m\""], 9.0);
    page.is("vllm:num_incoming_requests_total", &["model=\"x\""], 3.0);
    page.is("trieway_requests_total", &[&server, "model=\"m\"", "reason=\"prefix\""], 3.0);
    page.is("trieway_requests_total", &[&server, "reason=\"qps\""], 9.0);
    for (class, answers) in [("2xx", 7.0), ("4xx", 1.0), ("5xx", 1.0)] {
        let status = format!("status=\"{class}\"");
        page.is("trieway_responses_total", &[&server, &status], answers);
        page.is("vllm:request_latency_seconds_count", &[&server, &status], answers);
    }
    // The stream waits twice for 30 ms.
    page.is_within("vllm:request_latency_seconds_sum", &[], 0.06, 20.0);
    // All but the one that was held.
    page.is("trieway_time_to_first_byte_seconds_count", &[&server], 11.0);
    page.is("trieway_inter_chunk_gap_seconds_count", &["model=\"x\""], 0.0);
    page.is_within("trieway_inter_chunk_gap_seconds_count", &["model=\"m\""], 2.0, 5.0);
    page.is_within("trieway_inter_chunk_gap_seconds_sum", &["model=\"m\""], 0.055, 20.0);
    page.is_within("vllm:avg_itl", &[&server], 0.011, 10.0);
    page.is_within("vllm:avg_latency", &[&server], 0.06 / 9.0, 10.0);
    page.is_within("vllm:avg_decoding_length", &[&server], 0.001, 10.0);
    for kind in ["broken", "bad_response", "client_gone"] {
        page.is("vllm:request_errors_total", &[&server, &format!("error_type=\"{kind}\"")], 1.0);
    }
    page.is("vllm:request_errors_total", &[], 3.0);
    page.is("trieway_match_length_bytes_sum", &[&server], 3.0 * 512.0);
    page.is("trieway_match_length_bytes_count", &[&server], 12.0);
    page.is("trieway_request_bytes_total", &[&server], bodies as f64);
    page.is("trieway_response_bytes_total", &[&server], (4 * 2 + 2 + 3 + 15 + 4 + 2 * 2) as f64);
    page.is("trieway_retries_total", &[], 0.0);
    let connections = page.sum("trieway_upstream_connects_total", &[]) + page.sum("trieway_upstream_reuses_total", &[]);
    assert_eq!(connections, 12.0, "each request has a connection, and none was stale");
    page.is_within("trieway_upstream_connects_total", &[&server], 3.0, 4.0);
    page.is("trieway_refused_requests_total", &["4xx"], 2.0);
    page.is("trieway_refused_requests_total", &["5xx"], 1.0);
    let grown = |name: &str| page.sum(name, &[]) - before.sum(name, &[]);
    // Each look at /metrics is a connection and a request of the control plane's.
    let looks = grown("trieway_control_requests_total");
    assert!(looks >= 2.0, "{looks}");
    let renders = grown("trieway_control_renders_total");
    assert!((1.0..=looks).contains(&renders), "one after another, each is a page of its own: {renders} of {looks}");
    assert_eq!(grown("trieway_worker_requests_total"), 14.0 + looks);
    assert_eq!(grown("trieway_worker_accepted_connections_total"), 4.0 + looks);
    page.is_within("trieway_worker_open_connections", &["worker=\"0\""], 1.0, 3.0);
    // Once each prompt with at least a chunk.
    page.is_within("trieway_trie_inserts_total", &[], 1.0, 4.0);
    page.is("trieway_trie_lookups_total", &[], 4.0);
    page.is("trieway_trie_chunks", &[], 4.0);
    page.is("trieway_trie_nodes", &[], 1.0);
    page.is("trieway_trie_limit_bytes", &[], f64::from(512 << 20));
    page.is_within("trieway_trie_used_bytes", &[], 1.0, f64::from(512 << 20));
    page.is_within("trieway_trie_backlog_bytes", &[], 0.0, 100_000.0);
    // Over the time since the backend is known: a few seconds at most here.
    let qps = |page: &Page| page.sum("vllm:current_qps", &[&server]);
    eventually("the rate is that of 12 requests", || (12.0 / 60.0..=12.0).contains(&qps(&Page::of(&router))));
    the_process_is_described(&router);
}

fn the_process_is_described(router: &Router) {
    let page = Page::of(router);
    page.is("trieway_info", &["version=\"", "policy=\"prefixaware\""], 1.0);
    let resident = router.resident_kib() as f64 * 1024.0;
    page.is_within("process_resident_memory_bytes", &[], resident * 0.7, resident * 1.3);
    let open = router.descriptors() as f64;
    page.is_within("process_open_fds", &[], open - 4.0, open + 4.0);
    // The kernel counts in hundredths of a second.
    eventually("the process and its worker have used some of the processor's time", || {
        (0..50).for_each(|_| drop(router.get("/version")));
        let page = Page::of(router);
        let used = ["process_cpu_seconds_total", "trieway_worker_cpu_seconds_total"].map(|name| page.sum(name, &[]));
        used.iter().all(|seconds| (0.001..=60.0).contains(seconds))
    });
    let page = Page::of(router);
    let whole = page.sum("process_cpu_seconds_total", &[]);
    page.is_within("trieway_worker_cpu_seconds_total", &[], 0.01, whole + 0.02);
    // No tick comes to the microsecond.
    page.is_within("trieway_worker_longest_turn_seconds", &["worker=\"0\""], 0.000_001, whole);
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after the epoch").as_secs_f64();
    page.is_within("process_start_time_seconds", &[], now - 120.0, now + 1.0);
}

#[test]
fn gauges_show_what_runs_and_what_waits() {
    let origin = scripted();
    let server = format!("server=\"{}\"", origin.url());
    let flags = ["--workers", "1", "--max-inflight", "2", "--queue-size", "1", "--queue-timeout-seconds", "60"];
    let router = Router::in_front_of(&[origin.url()], &flags);
    let (held, begun) = (completion("m", "!hold!"), completion("m", "!begin!"));
    let mut clients: Vec<_> = (0..4).map(|_| router.client()).collect();
    clients[0].send_post("/v1/completions", &held, "");
    clients[1].send_post("/v1/completions", &begun, "");
    clients[1].head();
    eventually("both are there", || origin.count() == 2);
    clients[2].send_post("/v1/completions", &held, "");
    eventually("one waits", || Page::of(&router).sum("trieway_queue_depth", &[]) == 1.0);
    assert_eq!(clients[3].post("/v1/completions", &held).error_code(), "overloaded");
    let page = Page::of(&router);
    page.is("vllm:num_prefill_requests", &[&server], 1.0);
    page.is("vllm:num_decoding_requests", &[&server], 1.0);
    page.is("vllm:num_requests_running", &[&server], 2.0);
    page.is("trieway_in_flight_requests", &[&server], 2.0);
    page.is("trieway_in_flight_bytes", &[&server], (held.len() + begun.len()) as f64);
    page.is("trieway_rejected_requests_total", &["reason=\"queue_full\""], 1.0);
    page.is("trieway_rejected_requests_total", &[], 1.0);
    clients.drain(..3).for_each(Client::reset);
    eventually("nothing runs", || {
        let page = Page::of(&router);
        page.sum("trieway_in_flight_requests", &[]) + page.sum("trieway_queue_depth", &[]) == 0.0
    });
    let page = Page::of(&router);
    page.is("trieway_in_flight_bytes", &[], 0.0);
    page.is("trieway_queue_wait_seconds_count", &[], 1.0);
    page.is_within("trieway_queue_wait_seconds_sum", &[], 0.001, 20.0);
}

#[test]
fn a_backend_that_dies_is_an_error_a_retry_and_a_state() {
    let (stays, dies) = (Origin::plain(), Origin::plain());
    let urls = [stays.url(), dies.url()];
    let [alive, dead] = urls.clone().map(|url| format!("server=\"{url}\""));
    let flags = ["--workers", "1", "--routing-logic", "roundrobin", "--static-backend-health-check-interval", "1"];
    let router = Router::in_front_of(&urls, &flags);
    let address = dies.kill();
    for _ in 0..4 {
        assert_eq!(router.post("/v1/completions", &completion("m", "x")).status, 200);
    }
    eventually("it is down", || Page::of(&router).sum("trieway_backend_state", &[&dead, "state=\"down\""]) == 1.0);
    let page = Page::of(&router);
    page.is("vllm:num_incoming_requests_total", &["model=\"m\""], 4.0);
    let failed = page.sum("vllm:request_errors_total", &[&dead, "error_type=\"connect\""]);
    assert!(failed <= 1.0, "{failed}: after the first it is left out");
    page.is("trieway_retries_total", &[&alive], failed);
    page.is("trieway_requests_total", &[], 4.0 + failed);
    page.is("trieway_backend_state", &[&alive, "state=\"up\""], 1.0);
    page.is("trieway_backend_state", &[], 2.0);
    page.is("vllm:healthy_pods_total", &[&dead], 0.0);
    page.is("vllm:healthy_pods_total", &[&alive], 1.0);
    let _back = Origin::start_at(address, &["m"], |peer, _| peer.send(ok("{}")));
    eventually("its restart is noticed", || Page::of(&router).sum("trieway_backend_restarts_total", &[&dead]) == 1.0);
    Page::of(&router).is("trieway_backend_restarts_total", &[&alive], 0.0);
}

#[test]
fn a_backend_that_drains_is_shown_so() {
    let (stays, drains) = (Origin::plain(), Origin::plain());
    let urls = format!("{},{}", stays.url(), drains.url());
    let router = Router::start(&["--static-backends", &urls, "--drain-backends", &drains.url()]);
    let draining = format!("server=\"{}\"", drains.url());
    eventually("it drains", || {
        Page::of(&router).sum("trieway_backend_state", &[&draining, "state=\"draining\""]) == 1.0
    });
    Page::of(&router).is("vllm:healthy_pods_total", &[&draining], 0.0);
}

#[test]
fn a_full_trie_evicts() {
    let origin = Origin::plain();
    let flags = ["--workers", "1", "--prefix-memory", "2MiB", "--prefix-chunk-size", "16"];
    let router = Router::in_front_of(&[origin.url()], &flags);
    let mut client = router.client();
    for seed in 0..40 {
        assert_eq!(client.post("/v1/completions", &completion("m", &text(seed, 200_000))).status, 200);
    }
    let page = Page::of(&router);
    page.is("trieway_trie_inserts_total", &[], 40.0);
    page.is_within("trieway_trie_evicted_nodes_total", &[], 10.0, 1e6);
    page.is_within("trieway_trie_used_bytes", &[], 1e6, f64::from(2 << 20));
}

#[test]
fn prompts_that_fill_the_least_trie_are_refused_in_part() {
    let origin = Origin::plain();
    let flags = ["--workers", "1", "--prefix-memory", "1MiB", "--prefix-chunk-size", "16"];
    let router = Router::in_front_of(&[origin.url()], &flags);
    let mut client = router.client();
    for seed in 0..40 {
        assert_eq!(client.post("/v1/completions", &completion("m", &text(seed, 700_000))).status, 200);
    }
    // An insert can't go on when all that it could evict waits for reclamation.
    Page::of(&router).is_within("trieway_trie_refused_inserts_total", &[], 1.0, 40.0);
}

#[test]
fn what_a_restarted_backend_held_is_cleared() {
    let origin = Origin::plain();
    // So little memory that the whole table is swept in two seconds.
    let flags = ["--workers", "1", "--prefix-memory", "1MiB", "--static-backend-health-check-interval", "1"];
    let router = Router::in_front_of(&[origin.url()], &flags);
    assert_eq!(router.post("/v1/completions", &completion("m", &text(1, 1_000))).status, 200);
    let page = Page::of(&router);
    page.is("trieway_trie_nodes", &[], 1.0);
    page.is("trieway_trie_swept_nodes_total", &[], 0.0);
    let address = origin.kill();
    eventually("it is down", || Page::of(&router).sum("trieway_backend_state", &["state=\"down\""]) == 1.0);
    let _back = Origin::start_at(address, &["m"], |peer, _| peer.send(ok("{}")));
    eventually("its run is cleared", || Page::of(&router).sum("trieway_trie_swept_nodes_total", &[]) == 1.0);
    Page::of(&router).is("trieway_trie_nodes", &[], 0.0);
}

#[test]
fn every_family_is_compared_somewhere() {
    let here = include_str!("metrics_truth.rs").split_once("/// One `/metrics`").expect("the checks").1;
    for metric in trieway::metrics::names::ALL {
        let name = metric.name;
        let by_another = ELSEWHERE.iter().any(|(_, names)| names.contains(&name));
        let compared = ["\"", "_count\"", "_sum\""].iter().any(|end| here.contains(&format!("\"{name}{end}")));
        assert!(compared != by_another, "{name} is compared here: {compared}, elsewhere: {by_another}");
    }
    for (file, _) in ELSEWHERE {
        assert!(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file).exists(), "{file}");
    }
}
