//! `/engines` and `/metrics`, understood as far as the view needs it.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::metrics::names::Metric;

/// Both pages at one time.
#[derive(Debug, Default)]
pub(super) struct Scrape {
    pub(super) engines: Vec<Engine>,
    samples: Vec<Sample>,
}

/// One backend of `/engines`; keys beyond these are of no concern here.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Engine {
    pub(super) url: String,
    pub(super) state: String,
    #[serde(default)]
    pub(super) unreachable: bool,
    #[serde(default)]
    pub(super) qps: f64,
    #[serde(default)]
    pub(super) in_flight: u64,
    #[serde(default)]
    pub(super) waiting: u64,
}

#[derive(Debug)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Scrape {
    /// The error is a sentence.
    pub(super) fn read(engines: &str, metrics: &str) -> Result<Scrape, String> {
        let engines = serde_json::from_str(engines).map_err(|error| format!("/engines is not understood: {error}"))?;
        let lines = metrics.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let samples: Option<_> = lines.map(sample).collect();
        Ok(Scrape { engines, samples: samples.ok_or("/metrics is not understood")? })
    }

    fn of<'a>(&'a self, name: &'a str, labels: &'a [(&'a str, &'a str)]) -> impl Iterator<Item = &'a Sample> {
        let fits = |sample: &&Sample| labels.iter().all(|(label, value)| sample.label(label) == Some(value));
        self.samples.iter().filter(move |sample| sample.name == name && fits(sample))
    }

    /// The sum of a metric's samples with these labels; `None` when there is none.
    pub(super) fn sum(&self, metric: &Metric, labels: &[(&str, &str)]) -> Option<f64> {
        self.part(metric, "", labels)
    }

    /// The same of a histogram's `_sum` or `_count`.
    pub(super) fn part(&self, metric: &Metric, suffix: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let name = format!("{}{suffix}", metric.name);
        self.of(&name, labels).map(|sample| sample.value).reduce(|a, b| a + b)
    }

    /// Cumulative counts of a histogram by upper bound, ascending, the last one infinite.
    pub(super) fn buckets(&self, metric: &Metric, labels: &[(&str, &str)]) -> Vec<(f64, f64)> {
        let name = format!("{}_bucket", metric.name);
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for sample in self.of(&name, labels) {
            let Some(bound) = sample.label("le").and_then(|le| le.parse::<f64>().ok()) else { continue };
            match buckets.iter_mut().find(|(b, _)| *b == bound) {
                Some((_, count)) => *count += sample.value,
                None => buckets.push((bound, sample.value)),
            }
        }
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        buckets
    }

    /// A label of the metric's first sample.
    pub(super) fn label(&self, metric: &Metric, label: &str) -> Option<&str> {
        self.samples.iter().find(|sample| sample.name == metric.name)?.label(label)
    }
}

impl Sample {
    fn label(&self, name: &str) -> Option<&str> {
        self.labels.get(name).map(String::as_str)
    }
}

/// `name{label="value",…} value`.
fn sample(line: &str) -> Option<Sample> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(mut inside) = rest.strip_prefix('{') {
        while !inside.starts_with('}') {
            let (label, behind) = inside.split_once("=\"")?;
            let (value, behind) = quoted(behind)?;
            labels.insert(label.to_owned(), value);
            inside = behind.strip_prefix(',').unwrap_or(behind);
        }
        rest = &inside[1..];
    }
    // A time stamp may follow.
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample { name: name.to_owned(), labels, value })
}

/// The value up to the closing quote, and what stands behind that.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match chars.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_a_name_labels_and_a_value() {
        for (line, expected) in [
            ("a 1", Some(("a", 0, 1.0))),
            ("a{} 2.5e3", Some(("a", 0, 2500.0))),
            (r#"a_b:c{x="y"} 3 1700000000"#, Some(("a_b:c", 1, 3.0))),
            (r#"a{x="}\"\\\n,=",le="+Inf"} 4"#, Some(("a", 2, 4.0))),
            ("a", None),
            (r#"a{x="y 1"#, None),
            ("a{x} 1", None),
            ("a one", None),
        ] {
            let found = sample(line);
            let short = found.as_ref().map(|s| (s.name.as_str(), s.labels.len(), s.value));
            assert_eq!(short, expected, "{line}");
        }
        let sample = sample(r#"a{x="}\"\\\n,=",le="+Inf"} 4"#).expect("a sample");
        assert_eq!((sample.label("x"), sample.label("le")), (Some("}\"\\\n,="), Some("+Inf")));
    }
}
