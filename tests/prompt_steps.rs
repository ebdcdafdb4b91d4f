//! A body read in steps of any size gives what one pass gives: the same verdict, the same fields, the same key.

use proptest::prelude::*;
use trieway::prompt::{Chunks, Endpoint, NotObject, Progress, Scan, UNKEYED, key, namespace};

/// Steps take at most this many times the bytes of the body: each goes forward.
const STEPS_A_BYTE: usize = 2;

fn in_steps(scan: &mut Scan, body: &[u8], bytes: usize) -> Result<(), NotObject> {
    scan.begin();
    for _ in 0..STEPS_A_BYTE * body.len() + 8 {
        if scan.step(body, bytes)? == Progress::Done {
            return Ok(());
        }
    }
    panic!("a step of {bytes} does not go forward in {}", String::from_utf8_lossy(body));
}

/// Whatever a scan is asked for.
fn told(scan: &Scan, body: &[u8], endpoint: Endpoint) -> impl PartialEq + std::fmt::Debug {
    let mut chunks = Chunks::new(16, &UNKEYED);
    let seed = namespace(3, b"m", scan, body, endpoint);
    chunks.start(seed);
    key(endpoint, scan, body, &mut chunks);
    let field = |name: &str| scan.string_field(name, body, &mut Vec::new()).map(<[u8]>::to_vec);
    let fields = ["model", "user", "x", "lora", "stream"].map(field).to_vec();
    (seed, chunks.key().to_vec(), chunks.bytes(), scan.stream(body), fields)
}

fn agree(body: &[u8], sizes: &[usize]) {
    let (mut whole, mut stepped) = (Scan::default(), Scan::default());
    let read = whole.read(body);
    for &bytes in sizes {
        assert_eq!(in_steps(&mut stepped, body, bytes), read, "{bytes} {}", String::from_utf8_lossy(body));
        for endpoint in [Endpoint::Chat, Endpoint::Completions, Endpoint::Responses, Endpoint::Messages] {
            assert_eq!(
                told(&stepped, body, endpoint),
                told(&whole, body, endpoint),
                "{bytes} {}",
                String::from_utf8_lossy(body)
            );
        }
    }
}

fn bodies() -> Vec<String> {
    let long = "a".repeat(700);
    let escaped = r#"line\n\u00e9\ud83d\ude00\\\""#.repeat(40);
    vec![
        "{}".to_owned(),
        " \n{ } \n".to_owned(),
        format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":"{long}"}},{{"role":"x","content":"{escaped}"}}]}}"#
        ),
        format!(r#"{{"prompt":"{escaped}","x":"{long}","stream":true,"{long}":1,"{escaped}":[1,2]}}"#),
        format!(
            r#"{{"messages":[{{"{long}":"{escaped}","{escaped}":"{long}","content":["{long}","\n",{{"text":"{escaped}"}}]}}]}}"#
        ),
        format!(r#"{{"prompt":[{}1],"input":[[1, 2,3],[4]],"user":"é"}}"#, "101, 7,99999,".repeat(60)),
        format!(r#"{{"a":{}{},"b":{}1{}}}"#, "[".repeat(90), "]".repeat(90), r#"{"k":["#.repeat(40), "]}".repeat(40)),
        format!(r#"{{"x":{}"model":"m"}}"#, r#"{"a" : [ 1 , null , -1.5e9 ] , "b" : { } } , "y" : true , "#),
        format!(
            r#"{{"tools":[{{"a":"\n"}}],"messages":[{}{{}}]}}"#,
            r#"{"role":"\n","content":["\n","\u00e9"]},"#.repeat(30)
        ),
    ]
}

#[test]
fn steps_of_any_size_give_what_one_pass_gives() {
    let sizes: Vec<usize> = (0..70).chain([100, 255, 256, 257, 1000, usize::MAX]).collect();
    for body in bodies() {
        agree(body.as_bytes(), &sizes);
        // Cut anywhere, it is no object, for the same reason at the same place.
        for end in (0..body.len()).step_by(7) {
            agree(&body.as_bytes()[..end], &[1, 64, 300]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_body_with_an_edit_is_judged_alike(
        at in 0..9usize, place in any::<prop::sample::Index>(), byte in prop::sample::select(&b"\"\\{}[],: u0an\n"[..]), size in 1..600usize
    ) {
        let mut body = bodies().swap_remove(at).into_bytes();
        let place = place.index(body.len());
        body[place] = byte;
        agree(&body, &[size]);
    }
}
