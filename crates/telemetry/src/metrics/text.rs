//! The text format of OpenMetrics 1.0: families with what they are, and samples with their labels.
//! Nothing here knows what is measured.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// What the text is, for HTTP.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What a family measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that goes up and down.
    Gauge,
    /// A value that only grows until its source begins anew. Its samples end in `_total`.
    Counter,
    /// What is told of something in labels. Its samples end in `_info` and are one.
    Info,
    /// How many values were how big. Its samples end in `_bucket`, and have the label `le`.
    Histogram,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::Counter => "counter",
            Self::Info => "info",
            Self::Histogram => "histogram",
        }
    }

    /// What the names of samples end in.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Gauge => "",
            Self::Counter => "_total",
            Self::Info => "_info",
            Self::Histogram => "_bucket",
        }
    }
}

/// A family of samples.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Its name; its unit, if it has one, is the last word.
    pub name: &'static str,
    /// What it measures.
    pub kind: Kind,
    /// In what: `bytes`, `seconds`, `ratio`; nothing where things are counted.
    pub unit: &'static str,
    /// What it is, in a sentence.
    pub help: &'static str,
}

/// A number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    Whole(u64),
    Real(f64),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Self::Whole(value as u64)
    }
}

impl From<u32> for Value {
    fn from(value: u32) -> Self {
        Self::Whole(value.into())
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Whole(value.into())
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Whole(value) => value.fmt(out),
            Self::Real(value) if value.is_nan() => out.write_str("NaN"),
            Self::Real(value) if value.is_infinite() && *value > 0.0 => out.write_str("+Inf"),
            Self::Real(value) if value.is_infinite() => out.write_str("-Inf"),
            Self::Real(value) => value.fmt(out),
        }
    }
}

/// Labels: names, which are words, and values, which are any text.
pub type Labels<'a> = [(&'a str, &'a str)];

/// Samples of some families.
#[derive(Debug, Default)]
pub struct Exposition {
    /// By the name of the family: what is there of it by now.
    texts: BTreeMap<&'static str, String>,
    /// What has been said: a sample is there once, whatever its source says.
    known: BTreeSet<(&'static str, String)>,
}

impl Exposition {
    /// Adds a sample. A second one with the same labels is left out.
    pub fn add(&mut self, family: &Family, labels: &Labels<'_>, value: impl Into<Value>) {
        let labels = shown(labels);
        if !self.known.insert((family.name, labels.clone())) {
            return;
        }
        let text = self.texts.entry(family.name).or_default();
        // Writing into a text cannot fail.
        let _ = match labels.is_empty() {
            true => writeln!(
                text,
                "{}{} {}",
                family.name,
                family.kind.suffix(),
                value.into()
            ),
            false => writeln!(
                text,
                "{}{}{{{labels}}} {}",
                family.name,
                family.kind.suffix(),
                value.into()
            ),
        };
    }

    /// Adds a sample for each of these states, of which one is: that one is one, the others zero.
    pub fn add_states(&mut self, family: &Family, labels: &Labels<'_>, states: &[&str], is: &str) {
        for state in states {
            let with_state: Vec<(&str, &str)> =
                labels.iter().copied().chain([("state", *state)]).collect();
            self.add(family, &with_state, *state == is);
        }
    }

    /// Adds a histogram: upper bounds, each with how many values are below it and not below the
    /// one before; values above all of them are `more`.
    pub fn add_histogram(
        &mut self,
        family: &Family,
        labels: &Labels<'_>,
        buckets: &[(f64, u64)],
        more: u64,
    ) {
        let mut sum = 0u64;
        let ends = buckets
            .iter()
            .map(|(bound, count)| (Value::Real(*bound), *count));
        for (bound, count) in ends.chain([(Value::Real(f64::INFINITY), more)]) {
            sum = sum.saturating_add(count);
            let bound = bound.to_string();
            let with_bound: Vec<(&str, &str)> =
                labels.iter().copied().chain([("le", &*bound)]).collect();
            self.add(family, &with_bound, sum);
        }
    }

    /// The text, of these families in this order. Those without a sample are left out.
    pub fn text(&self, families: &[Family]) -> String {
        let mut out = String::new();
        for family in families {
            let Some(samples) = self.texts.get(family.name) else {
                continue;
            };
            let name = family.name;
            let _ = writeln!(out, "# TYPE {name} {}", family.kind.word());
            if !family.unit.is_empty() {
                let _ = writeln!(out, "# UNIT {name} {}", family.unit);
            }
            let _ = writeln!(out, "# HELP {name} {}", escaped(family.help));
            out.push_str(samples);
        }
        out.push_str("# EOF\n");
        out
    }
}

fn shown(labels: &Labels<'_>) -> String {
    let mut out = String::new();
    for (name, value) in labels {
        let comma = if out.is_empty() { "" } else { "," };
        let _ = write!(out, "{comma}{name}=\"{}\"", escaped(value));
    }
    out
}

/// Text as the format wants it in quotes and after `HELP` (`escaped-string`).
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out
}

/// Reads the format back, by its rules.
#[cfg(any(test, feature = "testing"))]
pub mod read {
    use std::collections::{BTreeMap, BTreeSet};

    /// A sample.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Sample {
        /// With its suffix.
        pub name: String,
        /// Labels with their values.
        pub labels: BTreeMap<String, String>,
        /// Its value.
        pub value: f64,
    }

    /// All samples.
    ///
    /// # Errors
    /// The rule that is broken, with the line.
    pub fn samples(text: &str) -> Result<Vec<Sample>, String> {
        let body = text.strip_suffix("# EOF\n").ok_or("it has no end")?;
        let mut families: BTreeMap<String, String> = BTreeMap::new();
        let (mut family, mut stage) = (String::new(), 0);
        let (mut out, mut known) = (Vec::new(), BTreeSet::new());
        for line in body.lines() {
            let wrong = |why: &str| format!("{why}: {line}");
            if let Some(rest) = line.strip_prefix("# ") {
                let mut words = rest.splitn(3, ' ');
                let (what, name) = (words.next(), words.next().unwrap_or_default());
                let value = words.next().ok_or_else(|| wrong("nothing is said"))?;
                let place = match what {
                    Some("TYPE") => {
                        family = name.to_owned();
                        if families.insert(family.clone(), value.to_owned()).is_some() {
                            return Err(wrong("a family in two places"));
                        }
                        1
                    }
                    Some("UNIT") => {
                        if !name.ends_with(&format!("_{value}")) {
                            return Err(wrong("the name does not end in the unit"));
                        }
                        2
                    }
                    Some("HELP") => {
                        unescaped(value).ok_or_else(|| wrong("a wrong escape"))?;
                        3
                    }
                    _ => return Err(wrong("an unknown word")),
                };
                if name != family || (place > 1 && place <= stage) {
                    return Err(wrong("out of order"));
                }
                stage = place;
                continue;
            }
            stage = 3;
            let sample = sample(line).ok_or_else(|| wrong("not understood"))?;
            let suffix = match families.get(&family).map(String::as_str) {
                Some("gauge") => "",
                Some("counter") => "_total",
                Some("info") => "_info",
                Some("histogram") => "_bucket",
                _ => return Err(wrong("of no family")),
            };
            if sample.name != format!("{family}{suffix}") {
                return Err(wrong("of another family"));
            }
            if suffix == "_total" && sample.value < 0.0 {
                return Err(wrong("a counter below zero"));
            }
            if !known.insert((sample.name.clone(), sample.labels.clone())) {
                return Err(wrong("twice"));
            }
            out.push(sample);
        }
        Ok(out)
    }

    fn sample(line: &str) -> Option<Sample> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        let end = line.find(|c| !is_name(c))?;
        let (name, mut rest) = line.split_at(end);
        let mut labels = BTreeMap::new();
        if let Some(inside) = rest.strip_prefix('{') {
            rest = inside;
            while !rest.starts_with('}') {
                let (label, after) = rest.split_once("=\"")?;
                let mut end = None;
                let mut is_escaped = false;
                for (at, c) in after.char_indices() {
                    match c {
                        _ if is_escaped => is_escaped = false,
                        '\\' => is_escaped = true,
                        '"' => {
                            end = Some(at);
                            break;
                        }
                        _ => {}
                    }
                }
                let end = end?;
                let value = unescaped(&after[..end])?;
                if label.is_empty() || !label.chars().all(is_name) {
                    return None;
                }
                if labels.insert(label.to_owned(), value).is_some() {
                    return None;
                }
                rest = &after[end + 1..];
                rest = rest.strip_prefix(',').unwrap_or(rest);
            }
            rest = rest.strip_prefix('}')?;
        }
        let value = rest.strip_prefix(' ')?;
        let value = match value {
            "+Inf" => f64::INFINITY,
            value => value.parse().ok()?,
        };
        let name = name.to_owned();
        Some(Sample {
            name,
            labels,
            value,
        })
    }

    fn unescaped(text: &str) -> Option<String> {
        let mut out = String::new();
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            out.push(match c {
                '\\' => match chars.next()? {
                    'n' => '\n',
                    c @ ('\\' | '"') => c,
                    _ => return None,
                },
                '"' => return None,
                c => c,
            });
        }
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GAUGE: Family = Family {
        name: "a_size_bytes",
        kind: Kind::Gauge,
        unit: "bytes",
        help: "A \"size\", with a \\ in it.",
    };
    const COUNTER: Family = Family {
        name: "a_reads",
        kind: Kind::Counter,
        unit: "",
        help: "Reads.",
    };
    const INFO: Family = Family {
        name: "a_build",
        kind: Kind::Info,
        unit: "",
        help: "What it is.",
    };
    const HISTOGRAM: Family = Family {
        name: "a_latency_seconds",
        kind: Kind::Histogram,
        unit: "seconds",
        help: "How long it takes.",
    };
    const ALL: [Family; 4] = [GAUGE, COUNTER, INFO, HISTOGRAM];

    #[test]
    fn the_text_is_as_the_format_has_it() {
        let mut out = Exposition::default();
        out.add(&COUNTER, &[("pool", "tank")], 7u64);
        out.add(&GAUGE, &[], 1.5);
        out.add(&COUNTER, &[("pool", "pond")], 8u64);
        out.add(&COUNTER, &[("pool", "tank")], 9u64);
        out.add(&INFO, &[("version", "1\"2\n3\\4")], true);
        out.add_histogram(&HISTOGRAM, &[("pool", "a")], &[(0.25, 3), (0.5, 0)], 2);
        let text = out.text(&ALL);
        let wanted = r#"# TYPE a_size_bytes gauge
# UNIT a_size_bytes bytes
# HELP a_size_bytes A \"size\", with a \\ in it.
a_size_bytes 1.5
# TYPE a_reads counter
# HELP a_reads Reads.
a_reads_total{pool="tank"} 7
a_reads_total{pool="pond"} 8
# TYPE a_build info
# HELP a_build What it is.
a_build_info{version="1\"2\n3\\4"} 1
# TYPE a_latency_seconds histogram
# UNIT a_latency_seconds seconds
# HELP a_latency_seconds How long it takes.
a_latency_seconds_bucket{pool="a",le="0.25"} 3
a_latency_seconds_bucket{pool="a",le="0.5"} 3
a_latency_seconds_bucket{pool="a",le="+Inf"} 5
# EOF
"#;
        assert_eq!(text, wanted);
        assert_eq!(read::samples(&text).map(|all| all.len()), Ok(7));
        assert_eq!(Exposition::default().text(&ALL), "# EOF\n");
    }

    #[test]
    fn states_are_one_and_zeros() {
        let mut out = Exposition::default();
        out.add_states(&GAUGE, &[("pool", "a")], &["on", "off"], "off");
        let samples = read::samples(&out.text(&ALL)).unwrap();
        let values: Vec<(&str, f64)> = samples
            .iter()
            .map(|sample| (&*sample.labels["state"], sample.value))
            .collect();
        assert_eq!(values, [("on", 0.0), ("off", 1.0)]);
    }

    proptest! {
        /// Whatever datasets and devices are called, it is read back.
        #[test]
        fn every_label_is_read_back(
            all in prop::collection::btree_map(any::<String>(), any::<u64>(), 1..20),
            reals in prop::collection::btree_map(any::<String>(), -1e12..1e12f64, 1..20),
        ) {
            let mut out = Exposition::default();
            for (label, value) in &all {
                out.add(&COUNTER, &[("of", label), ("more", "x")], *value);
            }
            for (label, value) in &reals {
                out.add(&GAUGE, &[("of", label)], *value);
            }
            let read = read::samples(&out.text(&ALL)).unwrap();
            let wanted = reals.iter().map(|(label, value)| (label, *value));
            let wanted = wanted.chain(all.iter().map(|(label, value)| (label, *value as f64)));
            for (sample, (label, value)) in read.iter().zip(wanted) {
                prop_assert_eq!(&sample.labels["of"], label);
                prop_assert_eq!(sample.value, value);
            }
            prop_assert_eq!(read.len(), all.len() + reals.len());
        }
    }
}
