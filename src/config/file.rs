//! A configuration file's text → the flags that it stands for. Pure.
//!
//! A file is one map, in YAML or JSON, which is YAML. Each key is a flag's name, with underscores or hyphens; a value is
//! what the command line would have there, and a list is the same as its items with commas between them. Two keys may be
//! maps, as in the production stack's files: `static_aliases`, from alias to model, and `static_models`, from each model to
//! its `static_backends`, `static_model_type` and `static_model_label`.
//!
//! It must not know which flags there are.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use super::secret::{quoted_key, quoted_url, without_quotations};

/// One flag that a file sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The long name, without hyphens in front.
    pub(super) flag: String,
    pub(super) value: String,
    /// Where it stands, from 1 on.
    pub(super) line: u64,
}

/// What is wrong with a text, and in which line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) line: Option<u64>,
    pub(super) what: String,
}

/// The flags that the text sets, each at most once.
///
/// # Errors
/// [`Fault`]: what is not YAML, or a value that no flag can have.
pub(super) fn read(text: &str) -> Result<Vec<Entry>, Fault> {
    let options = serde_saphyr::options! { with_snippet: false, strict_booleans: true };
    let top: Spanned<Value> = serde_saphyr::from_str_with_options(text, options).map_err(|error| syntax(&error))?;
    let pairs = match top.value {
        Value::Map(pairs) => pairs,
        Value::Nothing => Vec::new(),
        Value::One(_) | Value::List(_) => {
            return Err(Fault { line: Some(1), what: "it is not a map from flags to values".to_owned() });
        }
    };
    let mut entries = Vec::new();
    for (key, value) in pairs {
        let line = key.referenced.line();
        let found = entries_of(&key.value, value, line).map_err(|what| Fault { line: Some(line), what })?;
        for entry in found {
            if entries.iter().any(|known: &Entry| known.flag == entry.flag) {
                let key = entry.flag.replace('-', "_");
                let what = format!("'{}' is given twice", quoted_key(&key));
                return Err(Fault { line: Some(line), what });
            }
            entries.push(entry);
        }
    }
    Ok(entries)
}

fn syntax(error: &serde_saphyr::Error) -> Fault {
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    // The line is told by the caller, in the same form for all faults.
    let first = first.rsplit_once(" at line ").map_or(first, |(what, _)| what);
    let what = match error.without_snippet() {
        serde_saphyr::Error::DuplicateMappingKey { key, .. } => {
            format!("duplicate mapping key: {}", quoted_key(key.as_deref().unwrap_or_default()))
        }
        _ => without_quotations(first),
    };
    Fault { line: error.location().map(|location| location.line()), what }
}

fn entries_of(key: &str, value: Value, line: u64) -> Result<Vec<Entry>, String> {
    let flag = key.replace('_', "-");
    let entry = |flag: &str, value: String| Entry { flag: flag.to_owned(), value, line };
    Ok(match (flag.as_str(), value) {
        (_, Value::Nothing) => Vec::new(),
        ("static-aliases", Value::Map(pairs)) => {
            let aliases: Result<Vec<_>, _> = pairs
                .into_iter()
                .map(|(alias, model)| Ok::<_, String>(format!("{}:{}", alias.value, one(key, model)?)))
                .collect();
            vec![entry(&flag, joined(key, &aliases?)?)]
        }
        ("static-models", Value::Map(pairs)) => {
            let rows = rows(pairs)?;
            let column = |of: fn(&Row) -> &str| rows.iter().map(|row| of(row).to_owned()).collect::<Vec<_>>();
            let mut entries = vec![
                entry("static-backends", joined(key, &column(|row| &row.url))?),
                entry("static-models", joined(key, &column(|row| &row.model))?),
            ];
            for (flag, items) in
                [("static-model-types", column(|row| &row.kind)), ("static-model-labels", column(|row| &row.label))]
            {
                // Where some models have none, the list is short, and the check of its length says so.
                let given: Vec<_> = items.into_iter().filter(|item| !item.is_empty()).collect();
                if !given.is_empty() {
                    entries.push(entry(flag, joined(key, &given)?));
                }
            }
            entries
        }
        (_, Value::Map(_)) => return Err(format!("'{}' is a map: write a text or a list", quoted_key(key))),
        (_, Value::List(items)) => vec![entry(&flag, joined(key, &items)?)],
        (_, Value::One(text)) => vec![entry(&flag, text)],
    })
}

/// A backend of the stack's nested form.
struct Row {
    model: String,
    url: String,
    kind: String,
    label: String,
}

fn rows(models: Pairs) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for (model, details) in models {
        let model = model.value;
        let Value::Map(details) = details else {
            let model = quoted_url(&model, &model);
            return Err(format!("'static_models': '{model}' is not a map with a key 'static_backends'"));
        };
        let (mut urls, mut kind, mut label) = (Vec::new(), String::new(), String::new());
        for (key, value) in details {
            match (key.value.as_str(), value) {
                ("static_backends", Value::List(list)) => urls = list,
                ("static_backends", Value::One(text)) => {
                    urls = text.split(',').map(|url| url.trim().to_owned()).collect();
                }
                ("static_model_type", value) => kind = one("static_model_type", value)?,
                ("static_model_label", value) => label = one("static_model_label", value)?,
                (key, _) => {
                    let (model, key) = (quoted_url(&model, &model), quoted_key(key));
                    return Err(format!("'static_models': '{model}' has a key '{key}' that is not known there"));
                }
            }
        }
        if urls.is_empty() {
            let model = quoted_url(&model, &model);
            return Err(format!("'static_models': '{model}' has no 'static_backends'"));
        }
        rows.extend(urls.into_iter().map(|url| Row {
            model: model.clone(),
            url,
            kind: kind.clone(),
            label: label.clone(),
        }));
    }
    Ok(rows)
}

fn one(key: &str, value: Value) -> Result<String, String> {
    match value {
        Value::One(text) => Ok(text),
        _ => Err(format!("'{}' holds something else than a text", quoted_key(key))),
    }
}

fn joined(key: &str, items: &[String]) -> Result<String, String> {
    // The item is not quoted: it may be a key.
    match items.iter().any(|item| item.contains(',')) {
        true => Err(format!("'{}': an item holds a comma, which separates items", quoted_key(key))),
        false => Ok(items.join(",")),
    }
}

type Pairs = Vec<(Spanned<String>, Value)>;

/// What a flag's value can be in a file.
enum Value {
    Nothing,
    One(String),
    List(Vec<String>),
    Map(Pairs),
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a number, a list or a map")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Nothing)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Nothing)
    }

    fn visit_some<D: Deserializer<'de>>(self, some: D) -> Result<Value, D::Error> {
        some.deserialize_any(AnyValue)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::One(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::One(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::One(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::One(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::One(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = sequence.next_element()? {
            match item {
                Value::One(text) => items.push(text),
                _ => return Err(A::Error::custom("a list holds something else than texts")),
            }
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(Value::Map(pairs))
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(text: &str) -> Vec<(String, String, u64)> {
        read(text).expect(text).into_iter().map(|entry| (entry.flag, entry.value, entry.line)).collect()
    }

    fn flag(name: &str, value: &str, line: u64) -> (String, String, u64) {
        (name.to_owned(), value.to_owned(), line)
    }

    #[test]
    fn yaml_and_json_texts_lists_and_numbers_become_flags() {
        let expected = [
            flag("static-backends", "http://a:1,http://b:2", 1),
            flag("port", "8001", 4),
            flag("connect-timeout-seconds", "0.5", 5),
            flag("preserve-host", "true", 6),
        ];
        let yaml = "static_backends:\n  - http://a:1\n  - http://b:2\nport: 8001\nconnect-timeout-seconds: 0.50\n\
                    preserve_host: true\nuds:\n";
        assert_eq!(flags(yaml), expected);
        let json = "{\"static_backends\": \"http://a:1,http://b:2\",\n\n\n\t\"port\": 8001,\n\"connect-timeout-seconds\": 0.5,\
                    \n\"preserve_host\": true, \"uds\": null}";
        assert_eq!(flags(json), expected);
        assert_eq!(flags("session_key: y"), [flag("session-key", "y", 1)], "only true and false are booleans");
        assert_eq!((flags(""), flags("# nothing\n")), (Vec::new(), Vec::new()));
    }

    #[test]
    fn the_stacks_nested_form_is_read() {
        let text = "static_models:\n  org/m:\n    static_backends:\n      - http://a:1\n      - http://b:2\n    \
                    static_model_type: chat\n  n:\n    static_backends: [http://c:3]\n    static_model_type: completion\n\
                    static_aliases:\n  gpt: org/m\n  \"x\": n\n";
        assert_eq!(
            flags(text),
            [
                flag("static-backends", "http://a:1,http://b:2,http://c:3", 1),
                flag("static-models", "org/m,org/m,n", 1),
                flag("static-model-types", "chat,chat,completion", 1),
                flag("static-aliases", "gpt:org/m,x:n", 10),
            ]
        );
    }

    #[test]
    fn a_fault_has_its_line() {
        for (text, line, what) in [
            ("a: 1\na: 2\n", 2, "duplicate mapping key: a"),
            ("a: [1\nb: 2\n", 2, "':'"),
            ("- a\n", 1, "not a map"),
            ("a: 1\nb: {c: d}\n", 2, "'b' is a map"),
            ("a: 1\nb:\n  - [x]\n", 3, "a list holds"),
            ("a: 1\nb: [\"x,y\"]\n", 2, "'b': an item holds a comma"),
            ("a_b: 1\na-b: 2\n", 2, "'a_b' is given twice"),
            ("p: 1\nstatic_models:\n  m: http://a:1\n", 2, "'m' is not a map"),
            ("static_models:\n  m:\n    static_backend: x\n", 1, "a key 'static_backend'"),
            ("static_models:\n  m: {}\n", 1, "'m' has no 'static_backends'"),
        ] {
            let fault = read(text).expect_err(text);
            assert!(fault.line == Some(line) && fault.what.contains(what), "{text}: {fault:?}");
            assert!(!fault.what.contains(" at line ") && !fault.what.contains('\n'), "{fault:?}");
        }
    }
}
