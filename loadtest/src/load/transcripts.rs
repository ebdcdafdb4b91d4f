//! Recorded conversations, such as tau-bench's: what is replayed are their own messages, not the server's answers.

use serde_json::Value;

/// The messages of each conversation of a JSON file: a list of conversations, each a list of messages or an object that
/// has one under `traj` or `messages`. Errors name the file.
pub(crate) fn read(path: &str) -> Result<Vec<Vec<Value>>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let value: Value = serde_json::from_str(&text).map_err(|error| format!("{path}: {error}"))?;
    let talks = value.as_array().ok_or_else(|| format!("{path}: not a list of conversations"))?;
    let messages = |talk: &Value| talk.as_array().or(talk["traj"].as_array()).or(talk["messages"].as_array()).cloned();
    let talks: Vec<_> = talks.iter().filter_map(messages).filter(|talk| turns(talk).next().is_some()).collect();
    if talks.is_empty() { Err(format!("{path}: no conversation in it")) } else { Ok(talks) }
}

/// How many messages stand before each answer of the assistant.
pub(crate) fn turns(talk: &[Value]) -> impl Iterator<Item = usize> + '_ {
    (1..talk.len()).filter(|&at| talk[at]["role"] == "assistant")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_turn_ends_before_each_answer() {
        let roles = ["system", "user", "assistant", "tool", "assistant", "user"];
        let talk: Vec<Value> = roles.iter().map(|role| json!({"role": role, "content": "x"})).collect();
        assert_eq!(turns(&talk).collect::<Vec<_>>(), [2, 4]);
    }

    #[test]
    fn what_is_no_list_of_conversations_is_refused_by_name() {
        let path = std::env::temp_dir().join(format!("transcripts-{}.json", std::process::id()));
        let name = path.to_str().unwrap();
        let ask = json!({"role": "user"});
        let answer = json!({"role": "assistant"});
        std::fs::write(&path, json!([{"traj": [ask, answer]}, [ask, answer], [ask]]).to_string()).unwrap();
        assert_eq!(read(name).unwrap().len(), 2);
        for wrong in ["{}", "[]", "[[]]", "?"] {
            std::fs::write(&path, wrong).unwrap();
            assert!(read(name).unwrap_err().contains(name), "{wrong}");
        }
        std::fs::remove_file(&path).unwrap();
    }
}
