//! From the flags about backends to a list of them: comma-separated texts, one entry a backend.

use std::collections::HashSet;

use super::args::Args;
use super::url::BackendUrl;
use super::{MAX_BACKENDS, ModelType, StaticBackend};

/// The backends of `--static-backends` and its companions, in its order.
///
/// # Errors
/// Names the flag and the entry.
pub(super) fn backends(args: &Args) -> Result<Vec<StaticBackend>, String> {
    let urls = list(&args.static_backends);
    if urls.is_empty() {
        return Err(
            "--static-backends is missing: name at least one backend, such as --static-backends http://localhost:8000"
                .to_owned(),
        );
    }
    if urls.len() > MAX_BACKENDS {
        return Err(format!("--static-backends names {} backends; the limit is {MAX_BACKENDS}", urls.len()));
    }
    let models = one_each("--static-models", &args.static_models, urls.len())?;
    let types = one_each("--static-model-types", &args.static_model_types, urls.len())?;
    let labels = one_each("--static-model-labels", &args.static_model_labels, urls.len())?;
    let draining = list(&args.drain_backends)
        .into_iter()
        .map(|text| {
            BackendUrl::parse_item(text, &args.drain_backends).map_err(|error| format!("--drain-backends: {error}"))
        })
        .collect::<Result<HashSet<_>, _>>()?;
    let mut seen = HashSet::new();
    let backends: Vec<_> = urls
        .iter()
        .enumerate()
        .map(|(i, text)| {
            let url = BackendUrl::parse_item(text, &args.static_backends)
                .map_err(|error| format!("--static-backends: {error}"))?;
            if !seen.insert(url.clone()) {
                return Err(format!("--static-backends names {url} twice"));
            }
            let draining = draining.contains(&url);
            let model_type = types.as_ref().map(|t| model_type(t[i])).transpose()?;
            Ok(StaticBackend {
                url,
                models: models.iter().map(|m| m[i].to_owned()).collect(),
                model_type,
                label: labels.as_ref().map(|l| l[i].to_owned()),
                draining,
            })
        })
        .collect::<Result<_, String>>()?;
    match draining.iter().find(|url| !seen.contains(url)) {
        Some(url) => Err(format!("--drain-backends: {url} is not one of --static-backends")),
        None => Ok(backends),
    }
}

fn model_type(text: &str) -> Result<ModelType, String> {
    <ModelType as clap::ValueEnum>::from_str(text, true).map_err(|_| {
        format!("--static-model-types: '{text}' is not a type; write chat, completion, embeddings, rerank, score, transcription, vision or messages")
    })
}

/// The items of a comma-separated list, without blanks around them and without empty ones.
pub(super) fn list(text: &str) -> Vec<&str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).collect()
}

fn one_each<'a>(flag: &str, text: &'a str, backends: usize) -> Result<Option<Vec<&'a str>>, String> {
    let items = list(text);
    match items.len() {
        0 => Ok(None),
        n if n == backends => Ok(Some(items)),
        n => Err(format!(
            "{flag} has {n} entries and --static-backends has {backends}: write one for each backend, or leave the flag out"
        )),
    }
}

/// `alias:model,…`; the alias ends at the first colon, since model names may hold some.
pub(super) fn aliases(text: &str, models: &HashSet<&str>) -> Result<Vec<(String, String)>, String> {
    let mut seen = HashSet::new();
    list(text)
        .into_iter()
        .map(|item| {
            let (alias, model) = item
                .split_once(':')
                .map(|(a, m)| (a.trim(), m.trim()))
                .filter(|(a, m)| !a.is_empty() && !m.is_empty())
                .ok_or_else(|| format!("--static-aliases: '{item}' is not of the form alias:model"))?;
            if !seen.insert(alias) {
                return Err(format!("--static-aliases names the alias '{alias}' twice"));
            }
            if models.contains(alias) {
                return Err(format!("--static-aliases: '{alias}' is also the name of a model in --static-models"));
            }
            Ok((alias.to_owned(), model.to_owned()))
        })
        .collect()
}
