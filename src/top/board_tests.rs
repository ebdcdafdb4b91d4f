use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::top::view;

const ENGINES: &str = r#"[
    {"url": "http://a:1", "state": "up", "unreachable": false, "qps": 9.5, "in_flight": 3, "waiting": 1, "more": {}},
    {"url": "http://b:2", "state": "up", "unreachable": true, "qps": 0, "in_flight": 0, "waiting": 0}
]"#;

/// `/metrics` of a router that has sent `n` requests to a, every other one slowly.
fn metrics(n: u64) -> String {
    let a = r#"server="http://a:1",model="m""#;
    let half = n / 2;
    format!(
        "# TYPE trieway_requests_total counter\n\
         trieway_requests_total{{{a},reason=\"prefix\"}} {half}\n\
         trieway_requests_total{{{a},reason=\"qps\"}} {half}\n\
         trieway_match_length_bytes_sum{{{a}}} {matched}\n\
         trieway_request_bytes_total{{{a}}} {sent}\n\
         vllm:gpu_prefix_cache_hits_total{{server=\"http://a:1\"}} {half}\n\
         vllm:gpu_prefix_cache_queries_total{{server=\"http://a:1\"}} {n}\n\
         vllm:request_errors_total{{{a},error_type=\"broken\"}} {half}\n\
         trieway_time_to_first_byte_seconds_bucket{{{a},le=\"0.1\"}} {half}\n\
         trieway_time_to_first_byte_seconds_bucket{{{a},le=\"0.5\"}} {n}\n\
         trieway_time_to_first_byte_seconds_bucket{{{a},le=\"+Inf\"}} {n}\n\
         trieway_worker_open_connections{{worker=\"0\"}} 4\n\
         trieway_worker_open_connections{{worker=\"1\"}} 3\n\
         trieway_queue_depth 2\n\
         trieway_trie_used_bytes 104857600\n\
         trieway_trie_limit_bytes 536870912\n\
         trieway_refused_requests_total{{status=\"4xx\"}} {half}\n\
         process_cpu_seconds_total 1.5\n\
         process_resident_memory_bytes 7340032\n\
         trieway_info{{version=\"0.1.0\",io=\"io_uring\",policy=\"prefixaware\"}} 1\n",
        matched = n * 750,
        sent = n * 1000,
    )
}

fn scrape(n: u64) -> Scrape {
    Scrape::read(ENGINES, &metrics(n)).expect("understood")
}

#[test]
fn figures_are_of_the_time_between_two_scrapes() {
    let board = Board::between(&scrape(100), &scrape(140), Duration::from_secs(10));
    let [a, b, all] = &board.rows[..] else { panic!("{board:?}") };
    assert_eq!((a.qps, a.errors, a.in_flight, a.waiting), (Some(4.0), Some(2.0), 3, 1));
    assert_eq!((a.hit, a.engine_hit), (Some(0.75), Some(0.5)));
    assert_eq!((a.ttfb_p50_s, a.ttfb_p99_s.map(|s| (s * 1e3).round())), (Some(0.1), Some(492.0)));
    assert_eq!((b.state.as_str(), b.qps, b.hit, b.ttfb_p50_s, b.errors), ("refuses", Some(0.0), None, None, Some(0.0)));
    assert_eq!((all.qps, all.in_flight, all.hit), (Some(4.0), 3, Some(0.75)));
    assert_eq!((board.router.connections, board.router.refused), (Some(7.0), Some(2.0)));
}

#[test]
fn a_single_scrape_has_no_rates() {
    let board = Board::between(&scrape(100), &scrape(100), Duration::ZERO);
    let a = &board.rows[0];
    assert_eq!((a.qps, a.errors, a.hit, a.ttfb_p50_s, board.router.refused), (Some(9.5), None, None, None, None));
}

#[test]
fn a_router_that_was_started_anew_counts_from_zero() {
    let board = Board::between(&scrape(1000), &scrape(40), Duration::from_secs(10));
    let a = &board.rows[0];
    assert_eq!((a.qps, a.hit, a.ttfb_p50_s), (Some(4.0), Some(0.75), Some(0.1)));
}

#[test]
fn quantiles_are_linear_within_a_bucket() {
    let buckets = [(1.0, 10.0), (2.0, 20.0), (f64::INFINITY, 25.0)];
    let close = |q, expected: f64| (quantile(&buckets, q).expect("some") - expected).abs() < 1e-9;
    assert!(close(0.2, 0.5) && close(0.4, 1.0) && close(0.6, 1.5) && close(0.99, 2.0));
    assert_eq!((quantile(&[], 0.5), quantile(&[(1.0, 0.0), (f64::INFINITY, 0.0)], 0.5)), (None, None));
}

fn drawn(board: &Board, fault: Option<&str>, width: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, 9)).expect("a terminal");
    terminal.draw(|frame| view::draw(frame, "http://router:8001", board, fault)).expect("draws");
    let text = terminal.backend().to_string();
    text.lines().map(|line| line.trim_matches('"').trim_end()).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_view_shows_a_line_a_backend() {
    let board = Board::between(&scrape(100), &scrape(140), Duration::from_secs(10));
    let expected = "\
trieway 0.1.0 at http://router:8001 · prefixaware · io_uring
clients 7   queued 2   refused/s 2.0   cpu 0.00 cores   memory 7.0 MiB
trie 100 MiB of 512 MiB (20 %)   evicted/s 0.0

backend          state        qps flight  wait  err/s match engine ttfb50   99 %
a:1              up           4.0      3     1    2.0  75 %   50 % 100 ms 492 ms
b:2              refuses      0.0      0     0    0.0     -      -      -      -
all                           4.0      3     1    2.0  75 %   50 % 100 ms 492 ms
q quits · over 10 s · cached: match believed, engine told · ttfb: to first byte";
    assert_eq!(drawn(&board, None, 80), expected);
}

#[test]
fn a_router_that_does_not_answer_is_said_and_the_last_figures_stay() {
    let board = Board::between(&scrape(100), &scrape(140), Duration::from_secs(10));
    let text = drawn(&board, Some("http://router:8001/engines: Connection refused"), 80);
    assert!(text.contains("\nhttp://router:8001/engines: Connection refused\n") && text.contains("\na:1  "), "{text}");
    let narrow = drawn(&board, None, 40);
    assert!(narrow.contains("a:1              up           4.0      3\n"), "{narrow}");
}
