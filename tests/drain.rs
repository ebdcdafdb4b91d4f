//! The end: SIGTERM lets running requests finish, within limits, and nothing is lost.

mod support;

use std::time::{Duration, Instant};

use support::origin::ok;
use support::{Origin, Router, completion, eventually};

fn slow(time: Duration) -> Origin {
    Origin::start(&["m"], move |peer, _| {
        std::thread::sleep(time);
        peer.send(ok("{\"done\":1}"))
    })
}

#[test]
fn a_running_request_finishes_idle_connections_close_and_the_exit_code_is_0() {
    let origin = slow(Duration::from_millis(600));
    let mut router = Router::in_front_of(&[origin.url()], &["--workers", "2"]);
    let mut idle = router.client();
    assert_eq!(idle.get("/version").status, 200);
    let mut running = router.client();
    running.send_post("/v1/completions", &completion("m", "x"), "");
    eventually("the engine has it", || origin.count() == 1);
    router.signal("TERM");
    assert!(idle.ends_silently());
    let response = running.response();
    assert_eq!(
        (response.status, response.body_text().as_str(), response.field("connection")),
        (200, "{\"done\":1}", Some("close"))
    );
    assert!(running.ends_silently());
    assert_eq!(router.wait().code(), Some(0));
    assert!(std::net::TcpStream::connect(router.address).is_err(), "nobody listens any more");
}

#[test]
fn the_grace_limit_and_a_second_signal_end_it() {
    let origin = slow(Duration::from_secs(30));
    let mut router = Router::in_front_of(&[origin.url()], &["--drain-timeout-seconds", "0.5"]);
    let mut running = router.client();
    running.send_post("/v1/completions", &completion("m", "x"), "");
    eventually("the engine has it", || origin.count() == 1);
    let started = Instant::now();
    router.signal("TERM");
    assert_eq!(router.wait().code(), Some(0));
    assert!(started.elapsed() >= Duration::from_millis(450) && started.elapsed() < Duration::from_secs(5));

    let origin = slow(Duration::from_secs(30));
    let mut router = Router::in_front_of(&[origin.url()], &[]);
    let mut running = router.client();
    running.send_post("/v1/completions", &completion("m", "x"), "");
    eventually("the engine has it", || origin.count() == 1);
    let started = Instant::now();
    router.signal("INT");
    eventually("the first signal is logged", || router.log().iter().any(|line| line.contains("drain")));
    router.signal("INT");
    router.wait();
    assert!(started.elapsed() < Duration::from_secs(5));
}
