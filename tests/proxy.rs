//! The router as a proxy: framing, forwarding, streams, faults of either side.

mod support;

use std::time::{Duration, Instant};

use support::origin::ok;
use support::{Client, Origin, Router, chat, completion, eventually};

fn one(origin: &Origin) -> Router {
    Router::in_front_of(&[origin.url()], &[])
}

const STREAM_HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

fn chunk(data: &str) -> String {
    format!("{:x}\r\n{data}\r\n", data.len())
}

#[test]
fn the_body_arrives_byte_for_byte_under_one_length() {
    let origin = Origin::plain();
    let router = one(&origin);
    let body =
        "{ \"model\" : \"m\", \"messages\":[{\"role\":\"user\",\"content\":\"\\u00e9 é\"}], \"unknown\": 1.50 }\n";
    assert_eq!(router.post("/v1/chat/completions?x=1&y=%20", body).status, 200);
    let mut raw = b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for piece in body.as_bytes().chunks(7) {
        raw.extend_from_slice(format!("{:X};ext=1\r\n", piece.len()).as_bytes());
        raw.extend_from_slice(piece);
        raw.extend_from_slice(b"\r\n");
    }
    raw.extend_from_slice(b"0\r\nTrailer: x\r\n\r\n");
    assert_eq!(router.client().send(&raw).response().status, 200);
    let received = origin.received();
    assert_eq!(received[0].line(), "POST /v1/chat/completions?x=1&y=%20 HTTP/1.1");
    for request in &received {
        assert_eq!(String::from_utf8_lossy(&request.body), body);
        assert_eq!(request.fields("content-length"), [body.len().to_string()]);
    }
}

#[test]
fn fields_are_forwarded_as_they_are_and_hop_by_hop_ones_are_not() {
    let origin = Origin::start(&["m"], |peer, _| {
        peer.send("HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nConnection: X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=9\r\nX-End: 2\r\nContent-Length: 2\r\n\r\n{}")
    });
    let router = one(&origin);
    let fields = "X-Custom: A\r\nx-custom: b\r\nConnection: keep-alive, X-Secret\r\nX-Secret: s\r\nKeep-Alive: 5\r\nTE: trailers\r\nProxy-Authorization: p\r\n\
                  Authorization: Bearer k\r\nX-Request-Id: my-id\r\nX-Forwarded-For: 9.9.9.9\r\nUpgrade: h2c\r\n";
    let response = router.client().send_post("/v1/completions", &completion("m", "x"), fields).response();
    let request = &origin.received()[0];
    assert_eq!(request.fields("x-custom"), ["A", "b"]);
    assert!(request.head.contains("X-Custom: A\r\nx-custom: b"), "order and case: {}", request.head);
    assert_eq!(request.fields("authorization"), ["Bearer k"]);
    assert_eq!(request.fields("x-request-id"), ["my-id"]);
    assert_eq!(request.fields("host"), [origin.address.to_string()]);
    assert_eq!(request.fields("x-forwarded-for").join(", "), "9.9.9.9, 127.0.0.1");
    for gone in ["connection", "x-secret", "keep-alive", "te", "proxy-authorization", "upgrade"] {
        assert!(request.fields(gone).is_empty(), "{gone}: {}", request.head);
    }
    assert!(response.head.contains("Set-Cookie: a=1\r\nSet-Cookie: b=2"));
    assert_eq!(
        (response.field("x-end"), response.field("x-hop"), response.field("keep-alive")),
        (Some("2"), None, None)
    );
    assert_eq!(response.field("x-request-id"), Some("my-id"));
}

#[test]
fn each_event_is_forwarded_at_once() {
    let origin = Origin::start(&["m"], |peer, _| {
        peer.send(STREAM_HEAD);
        for i in 0..50 {
            peer.send(chunk(&format!("data: {i}\n\n")));
            std::thread::sleep(Duration::from_millis(5));
        }
        peer.send("0\r\n\r\n")
    });
    let router = one(&origin);
    let mut client = router.client();
    client.send_post("/v1/chat/completions", &chat("m", "x"), "");
    let (status, _) = client.head();
    assert_eq!(status, 200);
    let mut arrivals = Vec::new();
    for i in 0..50 {
        client.until(format!("data: {i}\n\n").as_bytes());
        arrivals.push(Instant::now());
    }
    let mut gaps: Vec<_> = arrivals.windows(2).map(|w| w[1] - w[0]).collect();
    gaps.sort_unstable();
    assert!(gaps[25] < Duration::from_millis(15), "events come as they are sent: {gaps:?}");
    assert_eq!(client.until(b"0\r\n\r\n"), b"\r\n0\r\n\r\n");
}

#[test]
fn a_client_that_goes_away_cancels_the_engines_request_at_once() {
    for streaming in [false, true] {
        let origin = Origin::start(&["m"], move |peer, _| {
            if streaming {
                peer.send(format!("{STREAM_HEAD}{}", chunk("data: 1\n\n")));
            }
            peer.wait_for_end();
            false
        });
        let router = one(&origin);
        let mut client = router.client();
        client.send_post("/v1/chat/completions", &chat("m", "x"), "");
        if streaming {
            client.until(b"data: 1\n\n");
        }
        eventually("the engine has the request", || origin.count() == 1);
        let left = Instant::now();
        drop(client);
        eventually("the engine sees the end", || !origin.gone().is_empty());
        let took = origin.gone()[0].duration_since(left);
        assert!(took < Duration::from_millis(100), "streaming {streaming}: seen after {took:?}");
        eventually("its load is released", || router.engines().contains("\"in_flight\":0"));
    }
}

#[test]
fn a_half_close_is_the_end_unless_it_is_allowed() {
    let answer_late = || {
        Origin::start(&["m"], |peer, _| {
            std::thread::sleep(Duration::from_millis(300));
            peer.send(ok("{\"late\":1}"))
        })
    };
    let origin = answer_late();
    let router = Router::in_front_of(&[origin.url()], &["--allow-half-close"]);
    let mut client = router.client();
    client.send_post("/v1/completions", &completion("m", "x"), "").half_close();
    assert_eq!(client.response().body_text(), "{\"late\":1}");
    assert!(client.ends_silently());
    let origin = answer_late();
    let router = one(&origin);
    let mut client = router.client();
    client.send_post("/v1/completions", &completion("m", "x"), "").half_close();
    assert!(client.ends_silently());
}

#[test]
fn a_broken_stream_breaks_visibly_and_is_not_sent_again() {
    for (case, tail, chunked) in [
        ("end without the last chunk", chunk("data: 2\n\n"), true),
        ("end inside a chunk", "ff\r\npart".to_owned(), true),
        ("short body", "part".to_owned(), false),
    ] {
        let (head, sent) = if chunked {
            (STREAM_HEAD.to_owned(), tail.clone())
        } else {
            ("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n".to_owned(), tail.clone())
        };
        let origin = Origin::start(&["m"], move |peer, _| {
            peer.send(format!("{head}{sent}"));
            false
        });
        let router = one(&origin);
        let response = router.post("/v1/chat/completions", &chat("m", "x"));
        assert!(!response.complete, "{case}: looks complete");
        assert_eq!(origin.count(), 1, "{case}: sent again");
    }
}

#[test]
fn a_reused_connection_that_died_is_replaced_once_and_a_fresh_one_never() {
    let origin = Origin::start(&["m"], |peer, _| {
        // Announces to stay, and does not.
        peer.send(ok("{}"));
        false
    });
    let router = one(&origin);
    for _ in 0..20 {
        assert_eq!(router.post("/v1/completions", &completion("m", "x")).status, 200);
    }
    let origin = Origin::start(&["m"], |_, _| false);
    let router = one(&origin);
    let response = router.post("/v1/completions", &completion("m", "x"));
    assert_eq!((response.status, response.error_code().as_str()), (502, "backend_failed"));
    assert_eq!(origin.count(), 1, "a generation that may have begun is not started again");
}

#[test]
fn bytes_after_an_answer_never_reach_anybody() {
    let origin = Origin::start(&["m"], |peer, _| {
        peer.send(format!("{}HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", ok("{}")))
    });
    let router = one(&origin);
    let mut client = router.client();
    for _ in 0..10 {
        assert_eq!(client.post("/v1/completions", &completion("m", "x")).body_text(), "{}");
    }
    let connections: std::collections::HashSet<_> = origin.received().iter().map(|r| r.connection).collect();
    assert_eq!(connections.len(), 10, "a connection with surplus bytes is not used again");
}

#[test]
fn a_slow_answer_is_504_and_a_bad_one_502() {
    let origin = Origin::start(&["m"], |peer, request| {
        if request.head.contains("X-Hang") {
            peer.wait_for_end();
        } else {
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
        }
        false
    });
    let router = Router::in_front_of(&[origin.url()], &["--first-byte-timeout-seconds", "0.3"]);
    let started = Instant::now();
    let late = router.client().send_post("/v1/completions", &completion("m", "x"), "X-Hang: 1\r\n").response();
    assert_eq!((late.status, late.error_code().as_str()), (504, "backend_timeout"));
    assert!(started.elapsed() > Duration::from_millis(250) && started.elapsed() < Duration::from_secs(2));
    let bad = router.post("/v1/completions", &completion("m", "x"));
    assert_eq!((bad.status, bad.error_code().as_str()), (502, "backend_bad_response"));
}

#[test]
fn any_status_of_a_backend_passes_untouched() {
    let origin = Origin::start(&["m"], |peer, request| {
        let status = String::from_utf8_lossy(&request.body)
            .split("status")
            .nth(1)
            .map(|s| s[..3].to_owned())
            .unwrap_or_default();
        peer.send(format!("HTTP/1.1 {status} Whatever\r\nRetry-After: 7\r\nContent-Length: 4\r\n\r\nbody"))
    });
    let router = one(&origin);
    for status in ["400", "404", "429", "500", "503"] {
        let response = router.post("/v1/completions", &completion("m", &format!("status{status}")));
        assert_eq!(
            (response.status.to_string().as_str(), response.field("retry-after"), response.body_text().as_str()),
            (status, Some("7"), "body")
        );
    }
    assert_eq!(origin.count(), 5, "none was sent twice");
    assert!(router.engines().contains("\"state\":\"up\""), "none of them takes the backend out");
}

#[test]
fn the_routers_own_errors_are_clear_and_the_next_request_works() {
    let origin = Origin::plain();
    let router = one(&origin);
    let unknown = router.post("/v1/chat/completions", &chat("nope", "x"));
    assert_eq!((unknown.status, unknown.error_code().as_str()), (404, "model_not_found"));
    assert!(unknown.body_text().contains("nope") && unknown.body_text().contains("/v1/models"));
    for body in ["", "[]", "\"hi\"", "123", "{\"model\":", "not json", "{\"model\":\"m\"} x"] {
        let response = router.post("/v1/chat/completions", body);
        assert_eq!((response.status, response.error_code().as_str()), (400, "invalid_json"), "{body}");
        assert!(response.field("x-request-id").is_some());
    }
    for bytes in [
        "GET / HTTP/1.1\r\n\r\n",
        "nonsense\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ] {
        let mut client = router.client();
        assert_eq!(client.send(bytes).response().status, 400, "{bytes:?}");
        assert!(client.ends_silently());
    }
    assert_eq!(origin.count(), 0);
    assert_eq!(router.post("/v1/chat/completions", &chat("m", "x")).status, 200);
    let without = router.post("/v1/chat/completions", "{\"messages\":[]}");
    assert_eq!(without.status, 200, "with one model served it is meant");
}

#[test]
fn a_body_over_the_limit_is_413_for_a_client_that_is_still_sending() {
    let origin = Origin::plain();
    let router = Router::in_front_of(&[origin.url()], &["--max-body-size", "1MiB"]);
    let mut client = router.client();
    client.send(format!("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n", 100 << 20));
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..100 {
        assert!(client.try_send(&piece), "the client may send to its end");
    }
    let response = client.response();
    assert_eq!((response.status, response.error_code().as_str()), (413, "request_body_too_large"));
    assert!(client.ends_silently());
    let mut client = router.client();
    client.send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\nxxxx");
    assert_eq!(client.response().status, 413, "decided by the announced chunk");
    let exact = format!("{{\"model\":\"m\",\"prompt\":\"{}\"}}", "y".repeat((1 << 20) - 25));
    assert_eq!((exact.len(), router.post("/v1/completions", &exact).status), (1 << 20, 200));
    assert!(router.resident_kib() < 200 << 10);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let origin = Origin::start(&["m"], |peer, request| {
        std::thread::sleep(Duration::from_millis(20));
        peer.send(ok(&String::from_utf8_lossy(&request.body)))
    });
    let router = one(&origin);
    let mut client = router.client();
    for i in 0..8 {
        client.send_post("/v1/completions", &completion("m", &format!("number {i}")), "");
    }
    for i in 0..8 {
        assert!(client.response().body_text().contains(&format!("number {i}\"")), "answer {i}");
    }
}

#[test]
fn expect_continue_is_answered_here_and_not_forwarded() {
    let origin = Origin::plain();
    let router = one(&origin);
    let mut client = router.client();
    let body = completion("m", "x");
    client.send(format!(
        "POST /v1/completions HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
        body.len()
    ));
    assert_eq!(client.response_to("POST").status, 100);
    assert_eq!(client.send(&body).response().status, 200);
    assert!(origin.received()[0].fields("expect").is_empty());
    assert_eq!(
        router
            .client()
            .send("POST / HTTP/1.1\r\nHost: t\r\nExpect: magic\r\nContent-Length: 1\r\n\r\n")
            .response()
            .status,
        417
    );
}

#[test]
fn clients_of_http_1_0_get_no_chunks() {
    let origin =
        Origin::start(&["m"], |peer, _| peer.send(format!("{STREAM_HEAD}{}{}0\r\n\r\n", chunk("one"), chunk("two"))));
    let router = one(&origin);
    let body = completion("m", "x");
    let mut client = router.client();
    client.send(format!(
        "POST /v1/completions HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    let (_, head) = client.head();
    assert!(!head.to_lowercase().contains("chunked"), "{head}");
    assert_eq!(client.read_to_end(), b"onetwo");
}

#[test]
fn a_slow_head_is_408_and_a_silent_connection_is_closed() {
    let origin = Origin::plain();
    let router = Router::in_front_of(
        &[origin.url()],
        &["--client-head-timeout-seconds", "0.3", "--client-body-timeout-seconds", "0.3"],
    );
    let mut client = router.client();
    client.send("GET / HTTP/1.1\r\nHo");
    assert_eq!(client.response().status, 408);
    assert!(client.ends_silently());
    let mut client = router.client();
    client.send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\n{");
    assert_eq!(client.response().status, 408);
    assert!(router.client().ends_silently());
}

#[test]
fn an_early_answer_is_relayed_although_the_body_is_not_taken() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
    let url = format!("http://{}", listener.local_addr().expect("address"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                use std::io::{Read, Write};
                let mut bytes = [0; 4096];
                let n = stream.read(&mut bytes).unwrap_or(0);
                if bytes[..n].starts_with(b"GET") {
                    let _ = stream.write_all(ok("{\"data\":[{\"id\":\"m\"}]}").as_bytes());
                } else {
                    let _ = stream
                        .write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\nConnection: close\r\n\r\nearly");
                }
                std::thread::sleep(Duration::from_secs(2));
            });
        }
    });
    let router =
        Router::start(&["--static-backends", &url, "--static-models", "m", "--no-static-backend-health-checks"]);
    let body = format!("{{\"model\":\"m\",\"prompt\":\"{}\"}}", "y".repeat(20 << 20));
    let response = router.post("/v1/completions", &body);
    assert_eq!((response.status, response.body_text().as_str()), (413, "early"));
}

#[test]
fn interim_answers_are_relayed_and_the_final_one_is_framed_by_itself() {
    let origin = Origin::start(&["m"], |peer, _| {
        peer.send("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
        peer.send(ok("{}"))
    });
    let router = one(&origin);
    let mut client = router.client();
    let hints = client.send_post("/v1/completions", &completion("m", "x"), "").response_to("POST");
    assert_eq!((hints.status, hints.field("link")), (103, Some("</a>")));
    let last = client.response_to("POST");
    assert_eq!((last.status, last.body_text().as_str()), (200, "{}"));
}

#[test]
fn two_thousand_idle_connections_and_five_hundred_slow_streams_hold_with_flat_memory() {
    let origin = Origin::start(&["m"], |peer, _| {
        peer.send(STREAM_HEAD);
        for i in 0..20 {
            if !peer.send(chunk(&format!("data: {i}\n\n"))) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(150));
        }
        peer.send("0\r\n\r\n")
    });
    let router = one(&origin);
    let before = router.resident_kib();
    let mut idle: Vec<Client> = (0..2000).map(|_| router.client()).collect();
    for client in &mut idle {
        assert_eq!(client.get("/version").status, 200);
    }
    let idle_kib = router.resident_kib().saturating_sub(before);
    let mut streams: Vec<Client> = (0..500).map(|_| router.client()).collect();
    for stream in &mut streams {
        stream.send_post("/v1/chat/completions", &chat("m", "x"), "");
    }
    for stream in &mut streams {
        stream.until(b"data: 0\n\n");
    }
    let early = router.resident_kib();
    for stream in &mut streams {
        stream.until(b"data: 19\n\n");
    }
    let late = router.resident_kib();
    assert!(late < early + (8 << 10), "memory grows while streams run: {early} KiB, then {late} KiB");
    assert!(idle_kib < 16 << 10, "2,000 idle connections hold {idle_kib} KiB");
    for client in &mut idle {
        assert_eq!(client.get("/version").status, 200);
    }
}
