//! Which bodies are JSON objects, and what the scan finds at their top level.

use std::time::{Duration, Instant};
use trieway::prompt::{Chunks, Endpoint, NotObject, Scan, UNKEYED, key};

#[test]
fn objects_are_read() {
    for body in [
        "{}",
        " \t\r\n{ } \n",
        "\u{feff}{}",
        r#"{"a":1}"#,
        r#"{"a" : [ ] , "b":{ },"c":[{}],"d":[[],[1,2]]}"#,
        r#"{"a":-0.5e+10,"b":0,"c":12E3,"d":true,"e":false,"f":null,"g":NaN,"h":Infinity,"i":-Infinity}"#,
        r#"{"a":"\"\\\/\b\f\n\r\t\u00e9\ud800"}"#,
        r#"{"":"","a]}":"[{"}"#,
        "{\"a\":\"control \u{1} and newline \n\"}",
        r#"{"a":{"b":{"c":[{"d":"}"}]}}}"#,
    ] {
        assert_eq!(Scan::default().read(body.as_bytes()), Ok(()), "{body}");
    }
}

#[test]
fn what_is_no_object_is_refused_at_its_fault() {
    for (body, at) in [
        ("", 0),
        ("  ", 2),
        ("[]", 0),
        ("\"hi\"", 0),
        ("123", 0),
        ("{", 1),
        ("{}x", 2),
        ("{}{}", 2),
        (r#"{"a"}"#, 4),
        (r#"{"a":}"#, 5),
        (r#"{"a":1,}"#, 7),
        (r#"{,"a":1}"#, 1),
        (r#"{"a":1 "b":2}"#, 7),
        (r#"{a:1}"#, 1),
        (r#"{'a':1}"#, 1),
        (r#"{"a":tru}"#, 5),
        (r#"{"a":truee}"#, 9),
        (r#"{"a":01}"#, 6),
        (r#"{"a":1.}"#, 7),
        (r#"{"a":.5}"#, 5),
        (r#"{"a":+1}"#, 5),
        (r#"{"a":-}"#, 6),
        (r#"{"a":1e}"#, 7),
        ("{\"a\":1\x002}", 6),
        (r#"{"a":[1,]}"#, 8),
        (r#"{"a":[1}"#, 7),
        (r#"{"a":{"b":1]}"#, 11),
        (r#"{"a":{"b"}}"#, 9),
        (r#"{"a":[1 2]}"#, 8),
        (r#"{"a":"x}"#, 6),
        (r#"{"a":"\x"}"#, 6),
        (r#"{"a":"\u12g4"}"#, 6),
        (r#"{"a":"\"#, 6),
        (r#"{"a":"\u12"#, 6),
    ] {
        assert_eq!(Scan::default().read(body.as_bytes()), Err(NotObject { at }), "{body}");
    }
}

#[test]
fn every_proper_prefix_of_an_object_is_refused() {
    let body = r#" {"model":"m\u00e9","a":[{"b":[1,-2.5e3,"\\"]},true,null],"stream":false}"#;
    let mut scan = Scan::default();
    for len in 0..body.len() {
        assert!(scan.read(&body.as_bytes()[..len]).is_err(), "{}", &body[..len]);
    }
    assert_eq!(scan.read(body.as_bytes()), Ok(()));
}

#[test]
fn the_model_is_decoded() {
    for (body, model) in [
        (r#"{"model":"llama"}"#, Some("llama")),
        (r#"{"model":"a\/b\u00e9\ud83d\ude00"}"#, Some("a/bé😀")),
        (r#"{"mod\u0065l":"m"}"#, Some("m")),
        (r#"{"model":"first","model":"last"}"#, Some("last")),
        (r#"{"model":"m","x":{"model":"inner"}}"#, Some("m")),
        (r#"{"model":""}"#, Some("")),
        (r#"{"model":"m","model":null}"#, None),
        (r#"{"model":null}"#, None),
        (r#"{"model":7}"#, None),
        (r#"{"model":["m"]}"#, None),
        (r#"{"Model":"m"}"#, None),
        ("{}", None),
    ] {
        let mut scan = Scan::default();
        scan.read(body.as_bytes()).unwrap();
        assert_eq!(scan.model(body.as_bytes(), &mut Vec::new()), model.map(str::as_bytes), "{body}");
    }
}

#[test]
fn only_true_asks_for_a_stream() {
    for (body, stream) in [
        (r#"{"stream":true}"#, true),
        (r#"{"stream" : true }"#, true),
        (r#"{"stream":true,"stream":false}"#, false),
        (r#"{"stream":false}"#, false),
        (r#"{"stream":"true"}"#, false),
        (r#"{"stream":1}"#, false),
        (r#"{"stream":null}"#, false),
        ("{}", false),
    ] {
        let mut scan = Scan::default();
        scan.read(body.as_bytes()).unwrap();
        assert_eq!(scan.stream(body.as_bytes()), stream, "{body}");
    }
}

fn string_field(name: &str, body: &str) -> Option<Vec<u8>> {
    let mut scan = Scan::default();
    scan.read(body.as_bytes()).expect("an object");
    scan.string_field(name, body.as_bytes(), &mut Vec::new()).map(<[u8]>::to_vec)
}

#[test]
fn any_member_can_name_a_session() {
    for (body, value) in [
        (r#"{"user":"alice"}"#, Some("alice")),
        (r#"{"us\u0065r":"al\u0069ce"}"#, Some("alice")),
        (r#"{"user":"a","user":"b"}"#, Some("b")),
        (r#"{"user":42}"#, Some("42")),
        (r#"{"user":-1.5e3 }"#, Some("-1.5e3")),
        (r#"{"user":true}"#, Some("true")),
        (r#"{"user":null}"#, None),
        (r#"{"user":{"id":1}}"#, None),
        (r#"{"user":["a"]}"#, None),
        (r#"{"x":{"user":"inner"}}"#, None),
    ] {
        assert_eq!(string_field("user", body).as_deref(), value.map(str::as_bytes), "{body}");
    }
    assert_eq!(string_field("model", r#"{"model":"m"}"#).as_deref(), Some(&b"m"[..]));
}

#[test]
fn a_member_is_found_among_very_many() {
    let filler: String = (0..500).map(|i| format!(r#""k{i}":{i},"#)).collect();
    let body = format!(r#"{{"user":"old",{filler}"user":"last","model":"m"}}"#);
    assert_eq!(string_field("user", &body).as_deref(), Some(&b"last"[..]));
    assert_eq!(string_field("k499", &body).as_deref(), Some(&b"499"[..]));
    assert_eq!(string_field("model", &body).as_deref(), Some(&b"m"[..]));
    assert_eq!(string_field("absent", &body), None);
}

#[test]
fn a_refused_body_leaves_nothing_behind() {
    let mut scan = Scan::default();
    scan.read(br#"{"model":"m","user":"u","stream":true}"#).unwrap();
    let body = br#"{"model":"x","user":"u","stream":true"#;
    assert!(scan.read(body).is_err());
    assert_eq!(scan.model(body, &mut Vec::new()), None);
    assert_eq!(scan.string_field("user", body, &mut Vec::new()), None);
    assert!(!scan.stream(body));
}

#[test]
fn a_scan_meets_another_body_without_panic() {
    let body =
        r#"{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"h\u0069"}]}],"tools":[{}]}"#;
    let mut scan = Scan::default();
    scan.read(body.as_bytes()).unwrap();
    let mut chunks = Chunks::new(16, &UNKEYED);
    for shift in 0..body.len() {
        chunks.start(0);
        key(Endpoint::Chat, &scan, &body.as_bytes()[shift..], &mut chunks);
        let rotated = [&body.as_bytes()[shift..], &body.as_bytes()[..shift]].concat();
        key(Endpoint::Chat, &scan, &rotated, &mut chunks);
        scan.string_field("user", &rotated, &mut Vec::new());
    }
}

#[test]
fn deep_nesting_is_stepped_over_up_to_a_limit() {
    let nested = |depth: usize| format!(r#"{{"x":{}{},"model":"m"}}"#, "[".repeat(depth), "]".repeat(depth));
    let mut scan = Scan::default();
    assert_eq!(scan.read(nested(16_384).as_bytes()), Ok(()));
    assert_eq!(scan.read(nested(20_000).as_bytes()), Err(NotObject { at: 5 + 16_385 }));
    assert!(scan.read(&[&br#"{"messages":"#[..], &vec![b'['; 64 << 20]].concat()).is_err());
}

/// Bodies that make a careless reader go over the same bytes again and again.
fn adversarial() -> Vec<(&'static str, String)> {
    // An unoptimised build is slow enough for a smaller body to tell linear time from quadratic.
    const BYTES: usize = if cfg!(debug_assertions) { 1 << 20 } else { 8 << 20 };
    let filled = |unit: &str| unit.repeat(BYTES / unit.len());
    let nested = |unit: &str| format!(r#"{}{{"x":1}}{}"#, filled(unit), "]".repeat(BYTES / unit.len()));
    vec![
        ("escapes", format!(r#"{{"messages":[{{"role":"user","content":"{}"}}]}}"#, filled("\\n"))),
        ("surrogates", format!(r#"{{"messages":[{{"role":"user","content":"{}"}}]}}"#, filled("\\ud800"))),
        ("spaces", format!(r#"{{"messages":[{{"role":{}"user","content":"x"}}]}}"#, filled(" "))),
        ("members", format!(r#"{{{}"messages":[{{"content":"x"}}]}}"#, filled("\"\":0,"))),
        ("models", format!(r#"{{{}"messages":[{{"content":"x"}}]}}"#, filled("\"model\":0,"))),
        ("messages", format!(r#"{{"messages":[{}{{}}]}}"#, filled("{},"))),
        ("parts", format!(r#"{{"messages":[{{"content":[{}{{}}]}}]}}"#, filled("{\"text\":\"\"},"))),
        ("results", format!(r#"{{"messages":[{{"content":[{{"content":[{}{{}}]}}]}}]}}"#, filled("{\"content\":[]},"))),
        ("tokens", format!(r#"{{"prompt":[{}1]}}"#, filled("1,"))),
        ("spaced tokens", format!(r#"{{"prompt":[{}1]}}"#, filled("1 ,"))),
        ("long tokens", format!(r#"{{"prompt":[{}1]}}"#, filled(&format!("{},", "1".repeat(70))))),
        (
            "long strings",
            format!(r#"{{"messages":[{{"content":[{}1]}}]}}"#, filled(&format!("\"{}\",", "a".repeat(300)))),
        ),
        ("long parts", {
            let part = format!(r#"{{"content":[{{"text":"{}\n"}}]}},"#, "a".repeat(300));
            format!(r#"{{"messages":[{{"content":[{}1]}}]}}"#, filled(&part))
        }),
        ("lists", format!(r#"{{"prompt":[{}[]]}}"#, filled("[1],"))),
        ("open quotes", format!(r#"{{"messages":[{}"#, filled("\""))),
        ("open braces", format!(r#"{{"messages":{}"#, filled("{\"messages\":"))),
        ("deep", format!(r#"{{"messages":{}}}"#, nested("["))),
        ("number", format!(r#"{{"prompt":[{}]}}"#, filled("1"))),
    ]
}

/// A quadratic step over such a body takes minutes to hours, a linear one at most a second or two.
#[test]
fn time_is_linear_on_adversarial_bodies() {
    let mut scan = Scan::default();
    let mut chunks = Chunks::new(128, &UNKEYED);
    for (name, body) in adversarial() {
        let began = Instant::now();
        if scan.read(body.as_bytes()).is_ok() {
            for endpoint in [Endpoint::Chat, Endpoint::Completions, Endpoint::Messages] {
                chunks.start(0);
                key(endpoint, &scan, body.as_bytes(), &mut chunks);
            }
            scan.string_field("absent", body.as_bytes(), &mut Vec::new());
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{name}: {:?}", began.elapsed());
    }
}
