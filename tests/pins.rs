//! A worker that has nothing to do stands in nobody's way: what others evict is freed, and their prompts find room.

mod support;

use support::{Origin, Router, completion, text};

/// Connections, so many that each worker has some.
const CONNECTIONS: usize = 16;
const PROMPTS: u64 = 200;

#[test]
fn inserts_find_room_while_other_workers_have_nothing_to_do() {
    let origin = Origin::plain();
    let flags = ["--workers", "4", "--prefix-memory", "1MiB", "--routing-logic", "prefixaware"];
    let router = Router::in_front_of(&[origin.url()], &flags);
    let mut clients: Vec<_> = (0..CONNECTIONS).map(|_| router.client()).collect();
    let mut send = |at: usize, prompt: u64| {
        let body = completion("m", &text(prompt, 300_000));
        assert_eq!(clients[at].post("/v1/completions", &body).status, 200);
    };
    for prompt in 0..PROMPTS {
        // Each worker has just looked something up, and then waits, while one connection goes on.
        if prompt % 10 == 0 {
            (0..CONNECTIONS).for_each(|at| send(at, 1_000_000 + at as u64));
        }
        send(0, prompt);
    }
    let refused = router.metric("trieway_trie_refused_inserts_total");
    assert!(router.metric("trieway_trie_evicted_nodes_total") > 200.0, "the trie is full");
    assert!(refused <= PROMPTS as f64 / 50.0, "{refused} inserts found no room");
}
