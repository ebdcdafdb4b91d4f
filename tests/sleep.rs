//! Backends that get no requests although they are well: asleep, or draining by the configuration.

mod support;

use support::origin::ok;
use support::{Origin, Router, chat, completion, eventually, text};

const FAST: [&str; 2] = ["--static-backend-health-check-interval", "0.1"];

fn pair() -> (Origin, Origin, Router) {
    let (a, b) = (server(), server());
    let router = Router::in_front_of(&[a.url(), b.url()], &FAST);
    (a, b, router)
}

fn server() -> Origin {
    Origin::start(&["m"], |peer, received| {
        let status = if received.line().contains("level=9") { "500 No" } else { "200 OK" };
        peer.send(ok("{\"done\":true}").replacen("200 OK", status, 1))
    })
}

fn engine(router: &Router, origin: &Origin) -> serde_json::Value {
    let engines = router.get("/engines").json();
    engines.as_array().expect("a list").iter().find(|e| e["url"] == origin.url().as_str()).expect("known").clone()
}

fn is(router: &Router, origin: &Origin, state: &str) -> bool {
    engine(router, origin)["state"] == state
}

/// How many of `n` requests each of the two got.
fn shares(router: &Router, a: &Origin, b: &Origin, n: usize) -> (usize, usize) {
    a.forget();
    b.forget();
    for seed in 0..n {
        let answer = router.post("/v1/completions", &completion("m", &text(seed as u64, 300)));
        assert_eq!(answer.status, 200, "{}", answer.body_text());
    }
    (a.count(), b.count())
}

#[test]
fn a_backend_that_is_sent_to_sleep_gets_nothing_until_it_is_woken_up() {
    let (a, b, router) = pair();
    let id = engine(&router, &a)["engine_id"].as_str().expect("an id").to_owned();
    let answer = router.post(&format!("/sleep?level=1&id={id}"), "");
    assert_eq!((answer.status, answer.body_text().as_str()), (200, "{\"done\":true}"));
    let received = a.received().pop().expect("relayed");
    assert_eq!(received.line(), "POST /sleep?level=1 HTTP/1.1", "without the id, which is the router's");
    assert!(is(&router, &a, "sleeping") && is(&router, &b, "up"));
    assert_eq!(router.metric(&format!("vllm:healthy_pods_total{{server=\"{}\"}}", a.url())), 0.0);
    assert_eq!(shares(&router, &a, &b, 10), (0, 10));
    // By its URL as well, and with a body.
    let url = a.url().replace(':', "%3A").replace('/', "%2F");
    a.forget();
    assert_eq!(router.post(&format!("/wake_up?id={url}"), "{\"tags\":[\"weights\"]}").status, 200);
    assert_eq!(a.received().pop().expect("relayed").body, b"{\"tags\":[\"weights\"]}");
    assert!(is(&router, &a, "up"));
    let (to_a, to_b) = shares(&router, &a, &b, 40);
    assert!(to_a > 0 && to_a + to_b == 40);
    let lines = |what: &str| router.log().iter().filter(|line| line.contains(what)).count();
    eventually("logged", || (lines("sleeps, as it was asked to"), lines("is awake, as it was asked to")) == (1, 1));
}

#[test]
fn a_sleep_that_fails_leaves_it_awake() {
    let (a, _b, router) = pair();
    assert_eq!(router.post(&format!("/sleep?level=9&id={}", a.url()), "").status, 500);
    assert!(is(&router, &a, "up"));
}

#[test]
fn an_id_that_nobody_has_is_told_with_those_that_there_are() {
    let (a, b, router) = pair();
    for (path, status) in [("/sleep?id=nobody", 404), ("/wake_up", 400), ("/sleep?id=http://127.0.0.1:1", 404)] {
        let answer = router.post(path, "");
        let message = answer.json()["error"]["message"].as_str().expect("a message").to_owned();
        let known = [&a, &b].map(|origin| engine(&router, origin)["engine_id"].as_str().expect("an id").to_owned());
        assert_eq!(answer.status, status, "{message}");
        assert!(known.iter().all(|id| message.contains(id)) && message.contains(&a.url()), "{message}");
    }
    assert_eq!(router.get("/is_sleeping?id=nobody").status, 404);
    assert_eq!((a.count(), b.count()), (0, 0));
}

#[test]
fn an_engine_that_tells_by_itself_is_believed_and_forgets_what_it_held() {
    let (a, b) = (server(), server());
    a.say_sleeping(false);
    let router = Router::in_front_of(&[a.url(), b.url()], &FAST);
    assert_eq!(router.get(&format!("/is_sleeping?id={}", a.url())).json()["is_sleeping"], false);
    let generation = engine(&router, &a)["generation"].clone();
    let held = (0..20).map(|seed| chat("m", &text(seed, 1000))).find(|prompt| {
        let before = a.count();
        router.post("/v1/chat/completions", prompt);
        a.count() > before
    });
    let held = held.expect("one went there");
    a.say_sleeping(true);
    eventually("asleep", || is(&router, &a, "sleeping"));
    assert_ne!(engine(&router, &a)["generation"], generation, "its cache is gone, and with it the marks");
    assert_eq!(router.post("/v1/chat/completions", &held).status, 200);
    assert_eq!(shares(&router, &a, &b, 6), (0, 6));
    a.say_sleeping(false);
    eventually("awake", || is(&router, &a, "up"));
    let before = b.count();
    router.post("/v1/chat/completions", &held);
    assert_eq!(b.count(), before + 1, "the conversation stays where it went meanwhile");
}

#[test]
fn a_draining_backend_gets_no_more_requests_and_is_taken_back() {
    let (a, b) = (server(), server());
    let path = std::env::temp_dir().join(format!("trieway-drain-{}.yaml", std::process::id()));
    let write = |drain: &str| {
        let text = format!("static_backends: [{}, {}]\ndrain_backends: [{drain}]\n", a.url(), b.url());
        std::fs::write(&path, text).expect("written");
    };
    write("");
    let router = Router::start(&["--dynamic-config-yaml", &path.to_string_lossy()]);
    router.wait_for_backends(2);
    write(&a.url());
    eventually("draining", || is(&router, &a, "draining"));
    assert_eq!(shares(&router, &a, &b, 10), (0, 10));
    write("");
    eventually("up again", || is(&router, &a, "up"));
    assert!(shares(&router, &a, &b, 40).0 > 0);
    let lines = |what: &str| router.log().iter().filter(|line| line.contains(what)).count();
    assert_eq!((lines("is draining"), lines("is no longer draining")), (1, 1));
    let _ = std::fs::remove_file(&path);
}
