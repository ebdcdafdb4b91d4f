//! Conversations with an agent as clients send them, one request a turn: each turn's key extends the one before.

use serde_json::{Value, json};
use trieway::prompt::{Chunks, DEFAULT_CHUNK_BYTES, Endpoint, Scan, UNKEYED, key, namespace};

fn key_of(body: &[u8]) -> Vec<u64> {
    let mut scan = Scan::default();
    scan.read(body).expect("an object");
    let mut chunks = Chunks::new(DEFAULT_CHUNK_BYTES, &UNKEYED);
    chunks.start(namespace(1, b"m", &scan, body, Endpoint::Chat));
    key(Endpoint::Chat, &scan, body, &mut chunks);
    chunks.key().to_vec()
}

const POLICY: &str = "# Airline agent policy\n\nThe current time is 2024-05-15 15:00:00 EST.\n- You should not provide any \
    information that is not given by the user or the \"tools\".\n- You should only make one tool call at a time.\n";

/// One exchange of a customer with an agent that looks something up before it answers.
fn exchange(customer: &str, number: usize) -> [Value; 4] {
    let call = format!("call_{customer}_{number}");
    let arguments = json!({ "user_id": customer, "reservation": format!("R{number:05}") }).to_string();
    let found = json!({
        "reservation_id": format!("R{number:05}"),
        "passengers": [{ "name": "Mia Li", "notes": "prefers \u{201c}window\u{201d} — señora 😀\n" }],
        "flights": vec![json!({ "origin": "JFK", "price": 108.5 + number as f64, "date": null }); 6],
    });
    [
        json!({ "role": "user", "content": format!("Hi, I'm {customer}.\nWhat about \"{number}\"?\t\\o/") }),
        json!({ "role": "assistant", "content": null, "tool_calls": [
            { "id": call, "type": "function", "function": { "name": "get_reservation", "arguments": arguments } }
        ] }),
        json!({ "role": "tool", "tool_call_id": call, "name": "get_reservation", "content": found.to_string() }),
        json!({ "role": "assistant", "content": format!("It costs ${}.\n\nShall I go on?", 108 + number) }),
    ]
}

/// The requests of one conversation: each sends all messages so far and ends where the engine is to answer.
fn requests(customer: &str, turns: usize) -> Vec<Value> {
    let mut messages = vec![json!({ "role": "system", "content": POLICY.repeat(4) })];
    let mut requests = Vec::new();
    for message in (0..turns).flat_map(|number| exchange(customer, number)) {
        if message["role"] == "assistant" {
            requests.push(json!({
                "model": "m",
                "messages": messages,
                "tools": [{ "type": "function", "function": { "name": "get_reservation", "parameters": {} } }],
                "temperature": 0.1 * requests.len() as f64,
            }));
        }
        messages.push(message);
    }
    requests
}

/// As Python's `json.dumps` writes by default: spaces, and nothing but ASCII.
fn pythonic(value: &Value) -> String {
    let list = |parts: Vec<String>| parts.join(", ");
    match value {
        Value::Array(items) => format!("[{}]", list(items.iter().map(pythonic).collect())),
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| format!("\"{name}\": {}", pythonic(value));
            format!("{{{}}}", list(members.iter().map(member).collect()))
        }
        other => {
            let ascii = |char: char| match char {
                ' '..='~' => char.to_string(),
                char => char.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect(),
            };
            other.to_string().chars().map(ascii).collect()
        }
    }
}

#[test]
fn each_turn_extends_the_key_of_the_one_before() {
    for write in [Value::to_string as fn(&Value) -> String, pythonic] {
        let mut before = Vec::new();
        for (turn, request) in requests("mia_li_3668", 25).iter().enumerate() {
            let now = key_of(write(request).as_bytes());
            assert!(now.starts_with(&before), "turn {turn}");
            // What the customer says may fill no chunk; what a tool finds fills some.
            assert!(turn % 2 == 0 || now.len() > before.len(), "turn {turn}");
            before = now;
        }
        assert!(before.len() > 100, "{}", before.len());
    }
}

/// Two customers of one agent share the tools, the policy, and nothing that comes after.
#[test]
fn conversations_part_at_their_first_difference() {
    let keys: Vec<Vec<u64>> = ["mia_li_3668", "omar_rossi_1241"]
        .map(|customer| key_of(requests(customer, 3).last().expect("a turn").to_string().as_bytes()))
        .into();
    let shared = keys[0].iter().zip(&keys[1]).take_while(|(one, other)| one == other).count();
    assert!(shared >= POLICY.len() * 4 / DEFAULT_CHUNK_BYTES, "{shared}");
    assert!(keys.iter().all(|key| key.len() > shared + 5), "{shared}");
}

/// Content is keyed as the engine reads it, whichever way the client escapes it.
#[test]
fn both_ways_of_writing_a_text_give_one_key() {
    let text = format!("{}\u{201c}😀\u{201d}\n\t\"{}\" \\ é\r", POLICY.repeat(3), "漢字".repeat(200));
    let request = json!({ "model": "m", "messages": [{ "role": "user", "content": text }] });
    assert_eq!(key_of(request.to_string().as_bytes()), key_of(pythonic(&request).as_bytes()));
}

#[test]
fn a_conversation_made_to_be_slow_is_keyed_by_its_beginning_in_every_turn() {
    for message in [
        r#"{"role":"user","content":"a few words and \n an escape"}"#,
        r#"{"content":["\n","\n",{"type":"text","text":"one \u00e9"}]}"#,
        r#"{"role":"user","content":[{"image_url":{"url":"\n"}}]}"#,
    ] {
        let turn = |messages: usize| {
            key_of(format!(r#"{{"messages":[{}{message}]}}"#, format!("{message},").repeat(messages)).as_bytes())
        };
        let (short, long, longest) = (turn(1_000), turn(100_000), turn(120_000));
        assert!(short.len() > 50 && long.len() > 3 * short.len(), "{} {}", short.len(), long.len());
        assert_eq!(short, long[..short.len()], "{message}");
        assert_eq!(long, longest, "the key has ended: {message}");
    }
    // One string is cut, too.
    let text = |escapes: usize| {
        key_of(
            format!(
                r#"{{"messages":[{{"content":"{}"}},{{"content":"{}"}}]}}"#,
                "more\\n".repeat(escapes),
                "x".repeat(1_000)
            )
            .as_bytes(),
        )
    };
    let (long, longest) = (text(900_000), text(1_000_000));
    assert_eq!(long[..10_000], longest[..10_000]);
    assert!(longest.len() < 4_000_000 / 64, "{}", longest.len());
}
