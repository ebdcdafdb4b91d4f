//! Model lists: an engine's `/v1/models` read, and the router's own made from all of them. Pure.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// A model's entry as the engine gives it; empty when only its name is known.
pub(super) type Entry = Map<String, Value>;
/// Entries by the models' names.
pub(super) type Models = BTreeMap<String, Entry>;

/// More models than this of one engine are not a list of models.
const MAX_MODELS: usize = 1024;
const MAX_NAME_BYTES: usize = 512;

/// Models that are known by name alone.
pub(super) fn named(names: &[String]) -> Models {
    names.iter().map(|name| (name.clone(), Entry::new())).collect()
}

/// The models of a `/v1/models` answer.
///
/// # Errors
/// What is wrong with it, as the rest of a sentence that names the path.
pub(super) fn parse(body: &[u8]) -> Result<Models, String> {
    let list: Value = serde_json::from_slice(body).map_err(|error| format!("is not JSON: {error}"))?;
    let Some(data) = list.get("data").and_then(Value::as_array) else {
        return Err("has no list 'data'".to_owned());
    };
    let models: Models = data.iter().filter_map(entry).take(MAX_MODELS).collect();
    if models.is_empty() { Err("names no model".to_owned()) } else { Ok(models) }
}

/// Names end up in log lines and labels: those with control characters are left out.
fn entry(value: &Value) -> Option<(String, Entry)> {
    let entry = value.as_object()?;
    let name = entry.get("id")?.as_str()?;
    let usable = !name.is_empty() && name.len() <= MAX_NAME_BYTES && !name.chars().any(char::is_control);
    usable.then(|| (name.to_owned(), entry.clone()))
}

/// The router's `/v1/models`: every model of `backends` once and every alias that leads to one, by name.
///
/// Of several backends that serve a model, the first that has told its entry is shown, with the smallest context length:
/// what fits there fits everywhere. `created_s` stands in where no engine gave one.
pub(super) fn merge<'a>(
    backends: impl IntoIterator<Item = &'a Models>,
    aliases: &[(String, String)],
    created_s: u64,
) -> Value {
    let mut merged = Models::new();
    for (name, entry) in backends.into_iter().flatten() {
        let known = merged.entry(name.clone()).or_default();
        let length = smaller(known.get("max_model_len"), entry.get("max_model_len"));
        if known.is_empty() {
            known.clone_from(entry);
        }
        if let Some(length) = length {
            known.insert("max_model_len".to_owned(), length);
        }
    }
    for (alias, model) in aliases {
        if let (Some(entry), false) = (merged.get(model), merged.contains_key(alias)) {
            let mut entry = entry.clone();
            entry.insert("root".to_owned(), json!(model));
            entry.insert("parent".to_owned(), json!(model));
            merged.insert(alias.clone(), entry);
        }
    }
    let data: Vec<Value> = merged.into_iter().map(|(name, entry)| finish(name, entry, created_s)).collect();
    json!({ "object": "list", "data": data })
}

fn smaller(a: Option<&Value>, b: Option<&Value>) -> Option<Value> {
    [a, b]
        .into_iter()
        .flatten()
        .filter(|length| length.as_u64().is_some())
        .min_by_key(|length| length.as_u64())
        .cloned()
}

/// Fills in what the OpenAI clients require of an entry.
fn finish(name: String, mut entry: Entry, created_s: u64) -> Value {
    entry.insert("id".to_owned(), Value::String(name));
    for (key, value) in [("object", json!("model")), ("created", json!(created_s)), ("owned_by", json!("trieway"))] {
        entry.entry(key).or_insert(value);
    }
    Value::Object(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn models(text: &str) -> Models {
        parse(text.as_bytes()).expect("valid")
    }

    #[test]
    fn reads_what_engines_send() {
        let read =
            models(r#"{"object":"list","data":[{"id":"b","max_model_len":4096},{"id":"a"},{"id":"x\ny"},{"no":1},7]}"#);
        assert_eq!(read.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(read["b"]["max_model_len"], 4096);
        for (text, what) in
            [("<html>", "is not JSON"), ("{}", "no list"), (r#"{"data":[]}"#, "no model"), ("[]", "no list")]
        {
            let error = parse(text.as_bytes()).expect_err(text);
            assert!(error.contains(what), "{text}: {error}");
        }
    }

    #[test]
    fn merges_sorted_without_duplicates_and_keeps_what_is_known() {
        let first = named(&["m".to_owned(), "z".to_owned()]);
        let second =
            models(r#"{"data":[{"id":"m","owned_by":"vllm","created":7,"max_model_len":8192,"root":"/models/m"}]}"#);
        let third = models(r#"{"data":[{"id":"m","owned_by":"other","max_model_len":4096}]}"#);
        let aliases =
            [("b".to_owned(), "m".to_owned()), ("z".to_owned(), "m".to_owned()), ("y".to_owned(), "gone".to_owned())];
        let merged = merge([&first, &second, &third], &aliases, 99);
        assert_eq!(
            merged,
            json!({"object": "list", "data": [
                {"id": "b", "object": "model", "created": 7, "owned_by": "vllm", "max_model_len": 4096, "root": "m", "parent": "m"},
                {"id": "m", "object": "model", "created": 7, "owned_by": "vllm", "max_model_len": 4096, "root": "/models/m"},
                {"id": "z", "object": "model", "created": 99, "owned_by": "trieway"},
            ]})
        );
    }

    #[test]
    fn of_nothing_the_list_is_empty() {
        assert_eq!(merge([], &[("a".to_owned(), "m".to_owned())], 1), json!({"object": "list", "data": []}));
    }
}
