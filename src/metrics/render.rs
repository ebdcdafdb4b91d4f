//! Families of samples to Prometheus text (exposition format 0.0.4). Pure.
//!
//! A family's header is written with its first sample: a family without samples is not there.

use std::fmt::Write;

use super::names::{Kind, Metric};

#[derive(Default)]
pub struct Writer {
    text: String,
}

/// A histogram's samples: counts per bucket (one more than bounds), the sum of the values, and how many of their units
/// make one of the metric's.
#[derive(Clone, Copy, Debug)]
pub struct Distribution<'a> {
    pub bounds: &'a [u64],
    pub counts: &'a [u64],
    pub sum: u64,
    pub units: f64,
}

impl Writer {
    pub fn family(&mut self, metric: &'static Metric) -> Family<'_> {
        Family { writer: self, metric, begun: false }
    }

    pub fn into_text(self) -> String {
        self.text
    }
}

/// The samples of one metric, written one after the other.
pub struct Family<'a> {
    writer: &'a mut Writer,
    metric: &'static Metric,
    begun: bool,
}

impl Family<'_> {
    pub fn count(&mut self, labels: &[&str], value: u64) {
        self.begin(labels);
        let name = self.metric.name;
        self.line(name, "", labels, None, Value::Count(value));
    }

    pub fn value(&mut self, labels: &[&str], value: f64) {
        self.begin(labels);
        let name = self.metric.name;
        self.line(name, "", labels, None, Value::Real(value));
    }

    /// A sample only where there is a value.
    pub fn optional(&mut self, labels: &[&str], value: Option<f64>) {
        if let Some(value) = value {
            self.value(labels, value);
        }
    }

    pub fn distribution(&mut self, labels: &[&str], of: &Distribution<'_>) {
        debug_assert_eq!(self.metric.kind, Kind::Histogram);
        debug_assert_eq!(of.counts.len(), of.bounds.len() + 1);
        self.begin(labels);
        let name = self.metric.name;
        let mut below = 0;
        for (at, count) in of.counts.iter().enumerate() {
            below += count;
            let bound = of.bounds.get(at).map_or(f64::INFINITY, |bound| *bound as f64 / of.units);
            self.line(name, "_bucket", labels, Some(bound), Value::Count(below));
        }
        self.line(name, "_sum", labels, None, Value::Real(of.sum as f64 / of.units));
        self.line(name, "_count", labels, None, Value::Count(below));
    }

    fn begin(&mut self, labels: &[&str]) {
        debug_assert_eq!(labels.len(), self.metric.labels.len(), "{}", self.metric.name);
        if self.begun {
            return;
        }
        self.begun = true;
        let Metric { name, kind, help, .. } = self.metric;
        let text = &mut self.writer.text;
        text.push_str("# HELP ");
        text.push_str(name);
        text.push(' ');
        escape(text, help, false);
        text.push_str("\n# TYPE ");
        text.push_str(name);
        text.push(' ');
        text.push_str(kind.as_str());
        text.push('\n');
    }

    fn line(&mut self, name: &str, suffix: &str, labels: &[&str], bound: Option<f64>, value: Value) {
        let text = &mut self.writer.text;
        text.push_str(name);
        text.push_str(suffix);
        let mut open = '{';
        for (label, content) in self.metric.labels.iter().zip(labels) {
            text.push(open);
            text.push_str(label);
            text.push_str("=\"");
            escape(text, content, true);
            text.push('"');
            open = ',';
        }
        if let Some(bound) = bound {
            text.push(open);
            text.push_str("le=\"");
            real(text, bound);
            text.push('"');
            open = ',';
        }
        text.push_str(if open == ',' { "} " } else { " " });
        match value {
            // Writing to a string cannot fail.
            Value::Count(count) => {
                let _ = write!(text, "{count}");
            }
            Value::Real(value) => real(text, value),
        }
        text.push('\n');
    }
}

#[derive(Clone, Copy)]
enum Value {
    Count(u64),
    Real(f64),
}

fn real(text: &mut String, value: f64) {
    if value.is_infinite() {
        text.push_str(if value > 0.0 { "+Inf" } else { "-Inf" });
    } else {
        // Writing to a string cannot fail.
        let _ = write!(text, "{value}");
    }
}

/// Backslashes and line ends are escaped everywhere, quotes in label values alone.
fn escape(text: &mut String, content: &str, quotes: bool) {
    for c in content.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '"' if quotes => text.push_str("\\\""),
            c => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static PLAIN: Metric =
        Metric { name: "plain_total", kind: Kind::Counter, labels: &[], help: "A \\ and\nmore \"x\"." };
    static LABELLED: Metric = Metric { name: "labelled", kind: Kind::Gauge, labels: &["a", "b"], help: "Two." };
    static HISTOGRAM: Metric = Metric { name: "h_seconds", kind: Kind::Histogram, labels: &["a"], help: "Times." };

    #[test]
    fn writes_what_prometheus_reads() {
        let mut writer = Writer::default();
        writer.family(&PLAIN).count(&[], u64::MAX);
        let mut family = writer.family(&LABELLED);
        family.value(&["x\"y\\z\nw", "ü"], 0.25);
        family.optional(&["", "no"], None);
        family.value(&["", "inf"], f64::NEG_INFINITY);
        family.value(&["", "nan"], f64::NAN);
        writer.family(&HISTOGRAM).distribution(
            &["s"],
            &Distribution { bounds: &[500, 1_000_000, 600_000_000], counts: &[1, 0, 2, 4], sum: 2_500_000, units: 1e6 },
        );
        let expected = r#"# HELP plain_total A \\ and\nmore "x".
# TYPE plain_total counter
plain_total 18446744073709551615
# HELP labelled Two.
# TYPE labelled gauge
labelled{a="x\"y\\z\nw",b="ü"} 0.25
labelled{a="",b="inf"} -Inf
labelled{a="",b="nan"} NaN
# HELP h_seconds Times.
# TYPE h_seconds histogram
h_seconds_bucket{a="s",le="0.0005"} 1
h_seconds_bucket{a="s",le="1"} 1
h_seconds_bucket{a="s",le="600"} 3
h_seconds_bucket{a="s",le="+Inf"} 7
h_seconds_sum{a="s"} 2.5
h_seconds_count{a="s"} 7
"#;
        assert_eq!(writer.into_text(), expected);
    }

    #[test]
    fn a_family_without_samples_is_not_there() {
        let mut writer = Writer::default();
        writer.family(&LABELLED).optional(&["a", "b"], None);
        assert_eq!(writer.into_text(), "");
    }
}
