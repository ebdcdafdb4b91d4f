//! Slow peers: events are not held back, late first tokens are waited for, limits are total where they must be, and those who
//! never read or never finish cost no memory and nobody else's time.

mod support;

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use support::leaks::open_connections;
use support::origin::ok;
use support::{AtRest, Client, Origin, RESTS_SOON, Router, chat, completion, eventually};

const STREAM_HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

fn chunk(data: &str) -> String {
    format!("{:x}\r\n{data}\r\n", data.len())
}

fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() * percent / 100).min(times.len() - 1)]
}

#[test]
fn events_are_neither_held_back_nor_gathered() {
    let began = Instant::now();
    let origin = Origin::start(&["m"], move |peer, request| {
        peer.send(STREAM_HEAD);
        let in_bytes = request.head.contains("X-Bytes");
        for _ in 0..150 {
            let event = chunk(&format!("data: {:>40}\n\n", began.elapsed().as_micros()));
            let sent = match in_bytes {
                true => event.as_bytes().chunks(1).all(|byte| peer.send(byte)),
                false => peer.send(&event),
            };
            if !sent {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        peer.send("0\r\n\r\n")
    });
    let router = Router::in_front_of(&[origin.url()], &RESTS_SOON);
    for fields in ["", "X-Bytes: 1\r\n"] {
        let mut client = router.client();
        client.send_post("/v1/chat/completions", &chat("m", "x"), fields).head();
        let (mut text, mut delays) = (String::new(), Vec::new());
        while delays.len() < 150 {
            // Late acknowledgements are what makes Nagle's delay visible.
            let _ = socket2::SockRef::from(&client.stream).set_tcp_quickack(false);
            text.push_str(&String::from_utf8_lossy(&client.next_chunk()));
            while let Some((event, rest)) = text.split_once("\n\n") {
                let sent_us = event.trim_start_matches("data: ").trim().parse().expect("microseconds");
                delays.push(began.elapsed().saturating_sub(Duration::from_micros(sent_us)));
                text = rest.to_owned();
            }
        }
        let (half, most) = (percentile(&mut delays, 50), percentile(&mut delays, 90));
        assert!(half < Duration::from_millis(5), "{fields:?}: half of the events come within {half:?}");
        assert!(most < Duration::from_millis(30), "{fields:?}: no 40 ms steps: {most:?}");
    }
}

#[test]
fn a_late_first_token_and_silence_within_a_stream_are_waited_for() {
    let origin = Origin::start(&["m"], |peer, request| {
        let pause = || std::thread::sleep(Duration::from_millis(700));
        match request.fields("x-silence").first() {
            Some(&"before") => pause(),
            Some(&"within") => {
                peer.send(STREAM_HEAD);
                pause();
                peer.send(chunk("data: 1\n\n"));
                pause();
                return peer.send(format!("{}0\r\n\r\n", chunk("data: 2\n\n")));
            }
            _ => {
                peer.send(STREAM_HEAD);
                for _ in 0..6 {
                    peer.send(chunk(": still there\n\n"));
                    std::thread::sleep(Duration::from_millis(200));
                }
                return peer.send("0\r\n\r\n");
            }
        }
        peer.send(ok("{}"))
    });
    let spare = Origin::plain();
    // The client's limits are far shorter than the silence: they must not count while the engine works.
    let short = [
        "--client-head-timeout-seconds",
        "0.2",
        "--client-body-timeout-seconds",
        "0.2",
        "--client-idle-timeout-seconds",
        "0.2",
        "--client-write-timeout-seconds",
        "0.2",
    ];
    let limits = ["--first-byte-timeout-seconds", "3", "--between-bytes-timeout-seconds", "3"];
    let router = Router::in_front_of(&[origin.url()], &[&limits[..], &short, &RESTS_SOON].concat());
    let at_rest = AtRest::of(&router);
    let mut clients = ["before", "within", "comments"].map(|silence| {
        let mut client = router.client();
        client.send_post("/v1/chat/completions", &chat("m", "x"), &format!("X-Silence: {silence}\r\n"));
        client
    });
    for client in &mut clients {
        let response = client.response();
        assert!(response.status == 200 && response.complete, "{response:?}");
    }
    drop((clients, spare));
    at_rest.is_back(&router);
}

#[test]
fn each_limit_on_a_backend_is_its_own_and_what_passes_it_is_not_tried_elsewhere() {
    let silent = |peer: &mut support::origin::Peer, request: &support::Received| {
        if request.head.contains("X-Within") {
            peer.send(format!("{STREAM_HEAD}{}", chunk("data: 1\n\n")));
        }
        peer.wait_for_end();
        false
    };
    let (a, b) = (Origin::start(&["m"], silent), Origin::start(&["m"], silent));
    let limits = ["--first-byte-timeout-seconds", "0.3", "--between-bytes-timeout-seconds", "0.6"];
    let router = Router::in_front_of(&[a.url(), b.url()], &[&limits[..], &RESTS_SOON].concat());
    let at_rest = AtRest::of(&router);
    let started = Instant::now();
    let late = router.post("/v1/completions", &completion("m", "x"));
    assert_eq!((late.status, late.error_code().as_str()), (504, "backend_timeout"));
    assert!(started.elapsed() >= Duration::from_millis(250), "{:?}", started.elapsed());
    assert_eq!(a.count() + b.count(), 1, "it may have begun: not sent elsewhere");
    let mut client = router.client();
    let started = Instant::now();
    client.send_post("/v1/completions", &completion("m", "x"), "X-Within: 1\r\n");
    client.until(b"data: 1\n\n");
    assert_eq!(client.read_to_end(), b"\r\n", "it breaks, without a last chunk");
    assert!(started.elapsed() >= Duration::from_millis(550), "{:?}", started.elapsed());
    assert_eq!(a.count() + b.count(), 2);
    eventually("both backends see their requests end", || a.gone().len() + b.gone().len() == 2);
    drop(client);
    at_rest.is_back(&router);
}

/// A client with the smallest receive buffer, which will not read.
fn reader_of_nothing(address: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("socket");
    socket.set_recv_buffer_size(4 << 10).expect("option");
    socket.connect(&address.into()).expect("connects");
    socket.into()
}

#[test]
fn two_hundred_clients_that_never_read_cost_no_memory_and_are_ended_on_both_sides() {
    const ANSWER_BYTES: usize = 200 << 20;
    let (sent, broken) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counter, breaks) = (Arc::clone(&sent), Arc::clone(&broken));
    let piece = vec![b'x'; 64 << 10];
    let origin = Origin::start(&["m"], move |peer, request| {
        if request.head.contains("X-Small") {
            return peer.send(ok("{}"));
        }
        // The kernel's own buffers would else hold gigabytes of what nobody reads.
        socket2::SockRef::from(&peer.stream).set_send_buffer_size(64 << 10).expect("option");
        peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {ANSWER_BYTES}\r\n\r\n"));
        for _ in 0..ANSWER_BYTES / piece.len() {
            if !peer.send(&piece) {
                breaks.fetch_add(1, Ordering::SeqCst);
                return false;
            }
            counter.fetch_add(piece.len(), Ordering::SeqCst);
        }
        true
    });
    let router =
        Router::in_front_of(&[origin.url()], &[&["--client-write-timeout-seconds", "2"][..], &RESTS_SOON].concat());
    let at_rest = AtRest::of(&router);
    let before_kib = router.resident_kib();
    let mut held: Vec<_> = (0..200).map(|_| reader_of_nothing(router.address)).collect();
    let body = completion("m", "x");
    for stream in &mut held {
        use std::io::Write;
        write!(stream, "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{body}", body.len())
            .expect("sends");
    }
    eventually("all answers have begun", || origin.count() == 200);
    std::thread::sleep(Duration::from_millis(500));
    // One buffer each: 256 KiB for bodies of this size.
    let grown_kib = router.resident_kib().saturating_sub(before_kib);
    assert!(grown_kib < 200 * 256 + (24 << 10), "200 stalled answers hold {grown_kib} KiB");
    let mut client = router.client();
    let started = Instant::now();
    let answer = client.send_post("/v1/completions", &body, "X-Small: 1\r\n").response();
    assert!(
        answer.status == 200 && started.elapsed() < Duration::from_secs(5),
        "others are not delayed: {:?}",
        started.elapsed()
    );
    assert!(sent.load(Ordering::SeqCst) < 200 * ANSWER_BYTES / 10, "the backends are stopped by the window");
    drop(client);
    eventually("the backends' sides are ended", || broken.load(Ordering::SeqCst) == 200);
    let stalls =
        format!("vllm:request_errors_total{{server=\"{}\",model=\"m\",error_type=\"client_timeout\"}}", origin.url());
    assert_eq!(router.metric(&stalls), 200.0);
    at_rest.is_back(&router);
    drop(held);
}

#[test]
fn a_thousand_trickling_heads_harm_nobody_and_each_ends_at_its_total_limit() {
    let origin = Origin::plain();
    let flags = ["--client-head-timeout-seconds", "1.2", "--client-idle-timeout-seconds", "30"];
    let router = Router::in_front_of(&[origin.url()], &[&flags[..], &RESTS_SOON].concat());
    let at_rest = AtRest::of(&router);
    let normal = |client: &mut Client| {
        let started = Instant::now();
        assert_eq!(client.post("/v1/completions", &completion("m", "x")).status, 200);
        started.elapsed()
    };
    let mut client = router.client();
    let mut alone: Vec<_> = (0..300).map(|_| normal(&mut client)).collect();
    let mut slow: Vec<_> = (0..1000).map(|_| router.client()).collect();
    let opened = Instant::now();
    for client in &mut slow {
        client.send("GET /");
    }
    let mut beside = Vec::new();
    while opened.elapsed() < Duration::from_millis(900) {
        for slow in slow.chunks_mut(20) {
            for client in slow {
                client.send("a");
            }
            beside.push(normal(&mut client));
        }
    }
    let (alone, beside) = (percentile(&mut alone, 99), percentile(&mut beside, 99));
    assert!(beside < alone * 5 + Duration::from_millis(50), "p99 of the others is {beside:?}, alone {alone:?}");
    // One goes on for long: a byte now and then does not prolong the limit.
    let mut writer = slow[0].stream.try_clone().expect("clones");
    let dripping = std::thread::spawn(move || {
        use std::io::Write;
        while opened.elapsed() < Duration::from_secs(3) && writer.write_all(b"a").is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    assert_eq!(slow[0].response().status, 408);
    let ended = opened.elapsed();
    assert!(ended < Duration::from_secs(3), "the limit is for the head, not for a byte: {ended:?}");
    for client in &mut slow[1..] {
        assert_eq!(client.response().status, 408);
    }
    drop(slow);
    dripping.join().expect("drips");
    eventually("they are closed", || open_connections(&router) <= 2.0);
    drop(client);
    at_rest.is_back(&router);
}

#[test]
fn five_hundred_silent_streams_need_no_threads() {
    let origin = Origin::start(&["m"], |peer, _| {
        peer.send(format!("{STREAM_HEAD}{}", chunk("data: 0\n\n")));
        peer.wait_for_end();
        false
    });
    let router = Router::in_front_of(&[origin.url()], &[&["--workers", "2"][..], &RESTS_SOON].concat());
    let at_rest = AtRest::of(&router);
    let before = router.threads();
    let mut streams: Vec<_> = (0..500).map(|_| router.client()).collect();
    for stream in &mut streams {
        stream.send_post("/v1/chat/completions", &chat("m", "x"), "");
    }
    for stream in &mut streams {
        stream.until(b"data: 0\n\n");
    }
    // Name lookups of the control plane have a few threads of their own, which come and go.
    assert!(router.threads() <= before + 8, "{} threads for 500 streams, {before} without", router.threads());
    drop(streams);
    eventually("the engine sees them all end", || origin.gone().len() == 500);
    at_rest.is_back(&router);
}
