//! However bytes are cut on their way, they mean the same: requests and answers byte by byte and at every split point,
//! over real sockets.

mod support;

use std::sync::{Arc, Mutex};

use support::origin::ok;
use support::{Client, Origin, Response, Router};

/// No cut, one byte at a time, and every cut in two.
fn cuts(bytes: &[u8]) -> impl Iterator<Item = Vec<&[u8]>> {
    let halves = (1..bytes.len()).map(|at| vec![&bytes[..at], &bytes[at..]]);
    [vec![bytes], bytes.chunks(1).collect()].into_iter().chain(halves)
}

fn echo() -> Origin {
    Origin::start(&["m"], |peer, request| {
        peer.send(ok(&format!("{} {}", request.line(), String::from_utf8_lossy(&request.body))))
    })
}

#[test]
fn a_request_is_the_same_under_every_split() {
    let requests = [
        ("GET /a HTTP/1.1\r\nHost: t\r\n\r\n", "GET /a HTTP/1.1 "),
        ("\r\n\r\nGET http://h/b HTTP/1.1\r\nHost: t\r\n\r\n", "GET /b HTTP/1.1 "),
        ("POST /c HTTP/1.1\r\nHost:t\r\nContent-Length: 5\r\n\r\nhello", "POST /c HTTP/1.1 hello"),
        ("POST /d HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi", "POST /d HTTP/1.1 hi"),
        (
            "POST /e HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n3;a=\"b\"\r\nhel\r\n2\r\nlo\r\n0\r\nX: y\r\n\r\n",
            "POST /e HTTP/1.1 hello",
        ),
        ("POST /f HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc", "POST /f HTTP/1.1 abc"),
    ];
    let origin = echo();
    let router = Router::in_front_of(&[origin.url()], &[]);
    let threads = requests.map(|(bytes, expected)| {
        let mut client = router.client();
        std::thread::spawn(move || {
            for pieces in cuts(bytes.as_bytes()) {
                let answer = client.send_in_pieces(pieces.iter().copied()).response();
                assert_eq!((answer.status, answer.body_text().as_str()), (200, expected), "{pieces:?}");
            }
            assert!(client.stays_open(), "one answer each: {bytes:?}");
        })
    });
    for thread in threads {
        thread.join().expect("the split makes no difference");
    }
    let sent: usize = requests.iter().map(|(bytes, _)| bytes.len() + 1).sum();
    assert_eq!(origin.canonical().len(), sent);
}

#[test]
fn a_refusal_is_the_same_under_every_split() {
    let requests = [
        ("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: t\nX: y\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nX : y\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: t\r\n X: y\r\n\r\n", 400),
        ("GET / HTTP/2.0\r\nHost: t\r\n\r\n", 505),
        ("POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhixx0\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n\r\n\r\n", 400),
    ];
    let origin = echo();
    let router = Router::in_front_of(&[origin.url()], &[]);
    let address = router.address;
    let threads = requests.map(|(bytes, status)| {
        std::thread::spawn(move || {
            for pieces in cuts(bytes.as_bytes()) {
                let mut client = Client::connect(address);
                let answer = client.send_in_pieces(pieces.iter().copied()).response();
                assert_eq!(answer.status, status, "{pieces:?}");
                assert!(client.ends_silently(), "{pieces:?}");
            }
        })
    });
    for thread in threads {
        thread.join().expect("the split makes no difference");
    }
    assert_eq!(origin.count(), 0);
}

/// What a client makes of one answer; `None` for `complete` bodies only.
fn seen(response: &Response) -> (u16, String, bool) {
    (response.status, response.body_text(), response.complete)
}

#[test]
fn an_answer_is_the_same_under_every_split() {
    let answers = [
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: y\r\n\r\nhello", (200, "hello", true)),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;a=\"b\"\r\nhel\r\n02\r\nlo\r\n0\r\nX: y\r\n\r\n",
            (200, "hello", true),
        ),
        (
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nL: a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
            (200, "hi", true),
        ),
        ("HTTP/1.1 204 No Content\r\nX: y\r\n\r\n", (204, "", true)),
        ("HTTP/1.0 200 OK\r\n\r\nuntil the end", (200, "until the end", true)),
        ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", (200, "short", false)),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", (200, "hello", false)),
    ];
    let threads = answers.map(|(bytes, expected)| {
        std::thread::spawn(move || {
            // Ends by closing where that is what ends it.
            let closes = !expected.2 || bytes.starts_with("HTTP/1.0");
            let pieces: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
            let given = Arc::clone(&pieces);
            let origin = Origin::start(&["m"], move |peer, _| {
                let pieces = given.lock().expect("pieces").clone();
                peer.send_in_pieces(pieces.iter().map(Vec::as_slice)) && !closes
            });
            let router = Router::in_front_of(&[origin.url()], &["--workers", "1"]);
            let mut client = router.client();
            for cut in cuts(bytes.as_bytes()) {
                *pieces.lock().expect("pieces") = cut.iter().map(|piece| piece.to_vec()).collect();
                let (status, body, complete) = seen(&client.get("/any"));
                assert_eq!((status, body.as_str(), complete), expected, "{cut:?}");
                if !complete {
                    assert!(client.ends_silently(), "{cut:?}");
                    client = router.client();
                }
            }
            let connections: std::collections::HashSet<_> = origin.received().iter().map(|r| r.connection).collect();
            assert_eq!(connections.len() > 1, closes, "{bytes:?}: kept when it may be, and only then");
        })
    });
    for thread in threads {
        thread.join().expect("the split makes no difference");
    }
}
