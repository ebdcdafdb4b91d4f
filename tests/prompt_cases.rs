//! Request bodies and what their keys must have in common, case by case.

use Endpoint::{Chat, Completions, Embeddings, Messages, Rerank, Responses, Score, Tokenize};
use trieway::prompt::{Chunks, Endpoint, Scan, UNKEYED, key, namespace};

const CHUNK_BYTES: usize = 16;

/// The key of one body, its namespace included, and the bytes that were fed.
fn fed(endpoint: Endpoint, body: &str) -> (Vec<u64>, u64) {
    let mut scan = Scan::default();
    scan.read(body.as_bytes()).unwrap_or_else(|fault| panic!("{fault}: {body}"));
    let mut scratch = Vec::new();
    let model = scan.model(body.as_bytes(), &mut scratch).unwrap_or_default();
    let mut chunks = Chunks::new(CHUNK_BYTES, &UNKEYED);
    chunks.start(namespace(1, model, &scan, body.as_bytes(), endpoint));
    key(endpoint, &scan, body.as_bytes(), &mut chunks);
    (chunks.key().to_vec(), chunks.bytes())
}

/// Equal to the last byte: a difference in the rest that fills no chunk shows when more is appended, so the bodies
/// here are long enough, or their fed lengths differ.
#[track_caller]
fn same(endpoint: Endpoint, one: &str, other: &str) {
    assert!(fed(endpoint, one).1 > 0, "no key: {one}");
    assert_eq!(fed(endpoint, one), fed(endpoint, other), "\n{one}\n{other}");
}

/// Different in their first chunk.
#[track_caller]
fn apart(endpoint: Endpoint, one: &str, other: &str) {
    let (one_key, other_key) = (fed(endpoint, one).0, fed(endpoint, other).0);
    assert!(!one_key.is_empty() && !other_key.is_empty(), "too short:\n{one}\n{other}");
    assert_ne!(one_key[0], other_key[0], "\n{one}\n{other}");
}

/// Different somewhere, but sharing `shared` chunks.
#[track_caller]
fn parted_after(shared: usize, endpoint: Endpoint, one: &str, other: &str) {
    let (one_key, other_key) = (fed(endpoint, one).0, fed(endpoint, other).0);
    let common = one_key.iter().zip(&other_key).take_while(|(one, other)| one == other).count();
    assert_eq!(common, shared, "\n{one}\n{other}");
    assert!(common < one_key.len() && common < other_key.len(), "\n{one}\n{other}");
}

#[track_caller]
fn no_key(endpoint: Endpoint, body: &str) {
    assert_eq!(fed(endpoint, body), (vec![], 0), "{body}");
}

fn chat(messages: &str) -> String {
    format!(r#"{{"model":"m","messages":[{messages}]}}"#)
}

fn user(content: &str) -> String {
    chat(&format!(r#"{{"role":"user","content":{content}}}"#))
}

const LONG: &str = "a text that is long enough for some chunks of sixteen bytes each, and then some";

#[test]
fn a_string_prompt_is_keyed_by_its_bytes_alone() {
    for (endpoint, field) in [(Completions, "prompt"), (Embeddings, "input"), (Tokenize, "prompt")] {
        let (key, bytes) = fed(endpoint, &format!(r#"{{"{field}":"{LONG}"}}"#));
        assert_eq!((key.len(), bytes), (LONG.len() / CHUNK_BYTES, LONG.len() as u64));
    }
}

#[test]
fn escapes_and_space_make_no_difference() {
    let plain = user(&format!(r#""{LONG} é 😀 / \" \\""#));
    same(Chat, &plain, &user(&format!(r#""{LONG} \u00e9 \uD83D\ude00 \/ \u0022 \u005C""#)));
    let spaced = format!(
        "\n{{ \"messages\" : [ {{ \"cont\\u0065nt\" : \"{LONG} é 😀 / \\\" \\\\\" , \"role\" : \"us\\u0065r\" }} ] , \"model\":\"m\"}} "
    );
    same(Chat, &plain, &spaced);
    apart(Completions, r#"{"prompt":"0123456789 \ud800 and"}"#, r#"{"prompt":"0123456789 \ud801 and"}"#);
    apart(Completions, r#"{"prompt":"0123456789\n and more"}"#, r#"{"prompt":"0123456789n  and more"}"#);
}

#[test]
fn of_a_repeated_name_the_last_counts() {
    let body =
        r#"{"model":"m","messages":[{"role":"x","content":"first","role":"user","content":"a much longer last"}]}"#;
    same(Chat, body, &user(r#""a much longer last""#));
    same(Chat, &format!(r#"{{"messages":[7],{}"#, &body[1..]), body);
}

#[test]
fn a_string_and_one_text_part_give_the_same_key() {
    let string = user(&format!(r#""{LONG}""#));
    for part in [r#""type":"text","text":"@""#, r#""text":"@","type":"input_text""#, r#""text":"@""#] {
        same(Chat, &string, &user(&format!("[{{{}}}]", part.replace('@', LONG))));
    }
    same(Chat, &string, &user(&format!(r#"["{LONG}"]"#)));
    parted_after(1, Chat, &user(r#""0123456789012345678901234""#), &user(r#"["0123456789","012345678901234"]"#));
}

#[test]
fn odd_content_adds_nothing() {
    let plain = chat(&format!(r#"{{"role":"user","content":"{LONG}"}}"#));
    for odd in [
        "null",
        "7",
        "true",
        "{}",
        "[]",
        "[[]]",
        r#""a message that is a string""#,
        r#"{"role":"assistant"}"#,
        r#"{"role":"assistant","content":null}"#,
        r#"{"role":"assistant","content":null,"tool_calls":null}"#,
        r#"{"role":"assistant","content":"","tool_calls":[],"reasoning_content":""}"#,
        r#"{"role":"user","content":7}"#,
        r#"{"role":"user","content":{}}"#,
        r#"{"role":"user","content":{"text":"x"}}"#,
        r#"{"role":"user","content":[]}"#,
        r#"{"role":"user","content":[null,7,{},[],""]}"#,
        r#"{"role":"user","content":[{"type":"text"},{"type":"text","text":null},{"type":"text","text":7}]}"#,
        r#"{"role":"user","content":[{"type":"image_url","image_url":null},{"type":"image_url","image_url":{}}]}"#,
        r#"{"role":"user","content":[{"type":"image_url","image_url":""},{"type":7}]}"#,
    ] {
        same(Chat, &plain, &chat(&format!(r#"{odd},{{"role":"user","content":"{LONG}"}},{odd}"#)));
        no_key(Chat, &chat(&[odd; 40].join(",")));
    }
}

/// A tool's result has parts; nothing has parts inside of those, and a walk without that bound would need a stack.
#[test]
fn content_is_two_levels_deep() {
    let nest = |inner: &str| format!(r#"[{{"type":"tool_result","content":{inner}}}]"#);
    let text = format!(r#""{LONG}""#);
    assert_eq!(fed(Messages, &user(&nest(&text))).1, 2 + 4 + 2 + LONG.len() as u64);
    assert_eq!(fed(Messages, &user(&nest(&format!("[{text}]")))), fed(Messages, &user(&nest(&text))));
    no_key(Messages, &user(&nest(&nest(&text))));
    let deep = (0..8_000).fold(text, |inner, _| nest(&inner));
    no_key(Messages, &user(&deep));
}

#[test]
fn bodies_without_a_prompt_have_no_key() {
    for body in [
        r#"{"model":"m"}"#,
        r#"{"messages":[]}"#,
        r#"{"messages":null}"#,
        r#"{"messages":"a string that is no list of messages"}"#,
        r#"{"messages":{"role":"user","content":"an object that is no list"}}"#,
        r#"{"prompt":null,"input":null}"#,
        r#"{"prompt":[],"input":[]}"#,
        r#"{"prompt":"","input":""}"#,
        r#"{"prompt":7,"input":true}"#,
        r#"{"tools":[],"tools":null}"#,
        r#"{"tools":"a string that is no list of tools"}"#,
    ] {
        for endpoint in [Chat, Completions, Responses, Messages, Embeddings, Rerank, Score, Tokenize] {
            no_key(endpoint, body);
        }
    }
    no_key(Completions, &format!(r#"{{"input":"{LONG}"}}"#));
    no_key(Endpoint::Other, &format!(r#"{{"prompt":"{LONG}","input":"{LONG}"}}"#));
}

#[test]
fn namespaces_keep_strangers_apart() {
    let bodies = [
        r#""model":"base""#,
        r#""model":"lora-1""#,
        r#""model":"base","cache_salt":"t1""#,
        r#""model":"base","cache_salt":"t2""#,
        r#""model":"base","cache_salt":7"#,
        r#""model":"base","cache_salt":"7""#,
        r#""model":"base","lora_path":"t1""#,
        r#""model":"base","lora_path":"t2""#,
        r#""model":"base","lora_name":"t1","cache_salt":"t2""#,
        r#""model":"base","lora_name":"t1t2""#,
        r#""model":"base","extra_key":"t1""#,
        r#""model":"baset1""#,
        r#""model":"x""#,
        r#""cache_salt":"x""#,
    ];
    for (i, one) in bodies.iter().enumerate() {
        for other in &bodies[..i] {
            let with_prompt = |head: &str| format!(r#"{{{head},"prompt":"{LONG}"}}"#);
            apart(Completions, &with_prompt(one), &with_prompt(other));
        }
    }
}

#[test]
fn an_empty_or_null_salt_is_an_absent_one() {
    let body = |head: &str| format!(r#"{{{head}"model":"m","prompt":"{LONG}"}}"#);
    for head in [r#""cache_salt":"","#, r#""cache_salt":null,"#, r#""lora_path":null,"#] {
        same(Completions, &body(""), &body(head));
    }
    same(Completions, &body(r#""cache_salt":"\u0061b","#), &body(r#""cache_salt":"ab","#));
}

#[test]
fn the_namespace_depends_on_the_process_and_the_endpoint() {
    let mut scan = Scan::default();
    scan.read(b"{}").unwrap();
    let endpoints = [Chat, Completions, Responses, Messages, Embeddings, Rerank, Score, Tokenize];
    let mut seeds: Vec<u64> = endpoints.iter().map(|&endpoint| namespace(1, b"m", &scan, b"{}", endpoint)).collect();
    seeds.push(namespace(2, b"m", &scan, b"{}", Chat));
    seeds.sort_unstable();
    seeds.dedup();
    assert_eq!(seeds.len(), endpoints.len() + 1);
}

#[test]
fn the_shapes_of_a_prompt_are_kept_apart() {
    for (endpoint, field) in [(Completions, "prompt"), (Embeddings, "input"), (Tokenize, "prompt")] {
        let body = |prompt: &str| format!(r#"{{"model":"m","{field}":{prompt}}}"#);
        let shapes = [
            r#""01234567890123456789""#,
            r#"["01234567890123456789"]"#,
            r#"["0123","4567890123456789"]"#,
            "[1,2,3,4,5,6,7,8]",
            "[[1,2,3,4,5,6,7,8]]",
            "[[1,2],[3,4,5,6,7,8]]",
            "[[1,2,3],[4,5,6,7,8]]",
            r#"[["01234567890123456789"]]"#,
        ];
        for (i, one) in shapes.iter().enumerate() {
            let (_, bytes) = fed(endpoint, &body(one));
            assert!(bytes > 0 && fed(endpoint, &body(one)) == fed(endpoint, &body(one)));
            for other in &shapes[..i] {
                // One list of ids is the same prompt with or without a list around it.
                if (*one, *other) != ("[[1,2,3,4,5,6,7,8]]", "[1,2,3,4,5,6,7,8]") {
                    let both = (fed(endpoint, &body(one)), fed(endpoint, &body(other)));
                    assert_ne!(both.0, both.1, "{one} {other}");
                }
            }
        }
    }
}

#[test]
fn what_is_no_token_id_ends_the_key() {
    let whole = r#"{"prompt":[1,2,3,4,5,6,7,8,9,10,11,12]}"#;
    assert_eq!(fed(Completions, whole).1, 2 + 12 * 4);
    for odd in ["-1", "1.5", "2147483648", "99999999999999999999", "true", "null"] {
        let body = format!(r#"{{"prompt":[1,2,3,4,5,6,7,{odd},9,10,11,12]}}"#);
        assert_eq!(fed(Completions, &body), (fed(Completions, whole).0[..1].to_vec(), 2 + 7 * 4), "{odd}");
    }
}

#[test]
fn tools_come_first_wherever_they_stand() {
    let with_tools = |name: &str| {
        let message = format!(r#"{{"role":"user","content":"{LONG}"}}"#);
        format!(
            r#"{{"model":"m","messages":[{message}],"tools":[{{"type":"function","function":{{"name":"{name}"}}}}]}}"#
        )
    };
    parted_after(2, Chat, &with_tools("first"), &with_tools("other"));
    let before = format!(r#"{{"model":"m","tools":[{{"a":1}}],"messages":[{{"content":"{LONG}"}}]}}"#);
    let after = format!(r#"{{"model":"m","messages":[{{"content":"{LONG}"}}],"tools":[{{"a":1}}]}}"#);
    same(Chat, &before, &after);
}

#[test]
fn roles_are_part_of_the_key() {
    apart(Chat, &user(&format!(r#""{LONG}""#)), &chat(&format!(r#"{{"role":"tool","content":"{LONG}"}}"#)));
    apart(Chat, &user(&format!(r#""{LONG}""#)), &chat(&format!(r#"{{"content":"{LONG}"}}"#)));
}

#[test]
fn text_cannot_pose_as_structure() {
    let two = chat(r#"{"role":"user","content":"0123456789"},{"role":"user","content":"0123456789"}"#);
    for glue in ["", "user", "mxuser", "\u{ff}m", r"\u00ffmuser\u00ffx", r"\udcffmuser\udcffx"] {
        parted_after(1, Chat, &two, &user(&format!(r#""0123456789{glue}0123456789abcdef""#)));
    }
}

#[test]
fn another_image_ends_the_match_at_the_image() {
    let body = |url: &str, tail: &str| {
        let image = format!(r#"{{"type":"image_url","image_url":{{"url":"{url}"}}}}"#);
        user(&format!(r#"[{{"type":"text","text":"{LONG}"}},{image},{{"type":"text","text":"{tail}{LONG}"}}]"#))
    };
    let image = format!("data:image/png;base64,{}", "QUJD".repeat(1 << 18));
    same(Chat, &body(&image, "q"), &body(&image, "q"));
    // Tag, role, tag and text make 88 bytes: five whole chunks before the image.
    assert_eq!((2 + 4 + 2 + LONG.len()) / CHUNK_BYTES, 5);
    parted_after(5, Chat, &body(&image, "q"), &body(&format!("{image}E"), "q"));
    parted_after(5, Chat, &body(&image, "q"), &user(&format!(r#""{LONG}{LONG}""#)));
    same(Chat, &body("http://x/1", ""), &body(r"http:\/\/x\/1", ""));
    let parts = |part: &str| user(&format!(r#"[{part},{{"type":"text","text":"{LONG}"}}]"#));
    apart(Chat, &parts(r#"{"type":"input_audio","input_audio":{"data":"QUJD","format":"wav"}}"#), &parts(r#""""#));
    let long_kind = format!(r#"{{"type":"{}\u0061"}}"#, "k".repeat(40));
    assert_eq!(fed(Chat, &user(&format!("[{long_kind}]"))).1, 2 + 4 + 2 + 8);
    apart(Chat, &parts(&long_kind), &parts(&long_kind.replace('k', "j")));
    apart(Chat, &parts(r#"{"type":"unheard_of","x":1}"#), &parts(r#"{"type":"unheard_of","x":2}"#));
}

#[test]
fn tool_calls_and_reasoning_are_part_of_a_turn() {
    let turn = |fields: &str| chat(&format!(r#"{{"role":"assistant",{fields}}},{{"role":"user","content":"{LONG}"}}"#));
    let call =
        |arguments: &str| turn(&format!(r#""content":null,"tool_calls":[{{"id":"t","arguments":"{arguments}"}}]"#));
    parted_after(2, Chat, &call("{}"), &call("[]"));
    parted_after(0, Chat, &turn(r#""reasoning_content":"because""#), &turn(r#""content":"because""#));
    same(Chat, &turn(r#""reasoning":"because""#), &turn(r#""reasoning_content":"because""#));
}

#[test]
fn responses_take_a_string_for_a_list_of_one_message() {
    let string = format!(r#"{{"instructions":"be brief","input":"{LONG}"}}"#);
    let list = |more: &str| {
        let first = format!(r#"{{"role":"user","content":[{{"type":"input_text","text":"{LONG}"}}]}}"#);
        format!(r#"{{"instructions":"be brief","input":[{first}{more}]}}"#)
    };
    same(Responses, &string, &list(""));
    let call = r#",{"type":"function_call","name":"f","arguments":"{}"},{"type":"function_call_output","output":"42"}"#;
    assert!(fed(Responses, &list(call)).0.starts_with(&fed(Responses, &string).0));
    assert_eq!(fed(Responses, &list(call)).1, fed(Responses, &list("")).1 + 2 + 3 + 4 + 2 + 4);
    apart(Responses, &string, &string.replace("brief", "wordy"));
    apart(Responses, &format!(r#"{{"previous_response_id":"r1","input":"{LONG}"}}"#), &string);
}

#[test]
fn anthropic_messages_begin_with_the_system_prompt() {
    let body = |system: &str, content: &str| {
        format!(r#"{{"messages":[{{"role":"user","content":{content}}}],"model":"m","system":{system}}}"#)
    };
    let text = format!(r#""{LONG}""#);
    let blocks = format!(r#"[{{"type":"text","text":{text},"cache_control":{{"type":"ephemeral"}}}}]"#);
    same(Messages, &body(&text, r#""hello""#), &body(&blocks, r#""hello""#));
    parted_after(5, Messages, &body(&text, r#""hello to all of you""#), &body(&text, r#""a greeting to you""#));
    let result =
        |content: &str| body("null", &format!(r#"[{{"type":"tool_result","tool_use_id":"t","content":{content}}}]"#));
    same(Messages, &result(&text), &result(&blocks));
    apart(Messages, &result(&text), &body("null", &text));
    let call =
        |input: &str| body("null", &format!(r#"[{{"type":"tool_use","id":"t","name":"find","input":{input}}}]"#));
    parted_after(1, Messages, &call(r#"{"a":"something else"}"#), &call(r#"{"b":"something else"}"#));
    let image = |data: &str| {
        let source = format!(r#"{{"type":"base64","media_type":"image/png","data":"{data}"}}"#);
        body("null", &format!(r#"[{{"type":"image","source":{source}}},{{"type":"text","text":{text}}}]"#))
    };
    apart(Messages, &image("QUJD"), &image("QUJE"));
}

#[test]
fn a_pair_is_keyed_by_both_sides() {
    for (endpoint, query, documents) in [
        (Rerank, "query", "documents"),
        (Score, "text_1", "text_2"),
        (Score, "queries", "items"),
        (Score, "data_1", "data_2"),
    ] {
        let body = |one: &str, other: &str| format!(r#"{{"{documents}":{other},"{query}":{one}}}"#);
        let text = format!(r#""{LONG}""#);
        let whole = body(&text, &format!("[{text},{text}]"));
        assert_eq!(fed(endpoint, &whole).1, 3 * (2 + LONG.len() as u64));
        same(endpoint, &body(&text, &format!("[{text}]")), &body(&text, &text));
        same(endpoint, &body(&text, &format!(r#"[{{"text":{text}}}]"#)), &body(&text, &text));
        same(
            endpoint,
            &body(&text, &format!(r#"{{"content":[{{"type":"text","text":{text}}}]}}"#)),
            &body(&text, &text),
        );
        parted_after(5, endpoint, &body(&text, &text), &body(&text, r#""another document altogether""#));
    }
}

#[test]
fn embeddings_and_tokenize_also_take_messages() {
    let body = user(&format!(r#""{LONG}""#));
    for endpoint in [Embeddings, Tokenize] {
        assert_eq!(fed(endpoint, &body).1, fed(Chat, &body).1);
    }
}

/// No byte outside of UTF-8 is lost or replaced.
#[test]
fn bytes_that_are_not_utf8_are_taken_as_they_are() {
    let key_of = |byte: u8| {
        let body = [&br#"{"prompt":"0123456789"#[..], &[byte], br#"0123456789"}"#].concat();
        let mut scan = Scan::default();
        scan.read(&body).unwrap();
        let mut chunks = Chunks::new(CHUNK_BYTES, &UNKEYED);
        chunks.start(0);
        key(Completions, &scan, &body, &mut chunks);
        (chunks.key().to_vec(), chunks.bytes())
    };
    assert_ne!(key_of(0x80).0, key_of(0xfe).0);
    assert_eq!(key_of(0x80).1, 21);
}
