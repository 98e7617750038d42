//! A page in the text format, taken apart again.

use std::collections::BTreeMap;

/// One line of a page.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

impl Sample {
    /// The value of a label; to Prometheus one that is missing is one that is empty.
    pub(crate) fn label(&self, key: &str) -> &str {
        self.labels.get(key).map_or("", String::as_str)
    }
}

/// The samples of a page, in its order.
#[derive(Debug)]
pub(crate) struct Samples(Vec<Sample>);

impl Samples {
    pub(crate) fn parse(page: &str) -> Self {
        let lines = page.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        Self(lines.map(sample).collect())
    }

    /// Those of this name that have these labels, among others.
    pub(crate) fn of(&self, name: &str, labels: &[(&str, &str)]) -> Vec<&Sample> {
        let has = |sample: &&Sample| {
            sample.name == name && labels.iter().all(|&(key, value)| sample.label(key) == value)
        };
        self.0.iter().filter(has).collect()
    }

    /// Their sum; 0 without any.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.of(name, labels).iter().fold(0.0, |sum, sample| sum + sample.value)
    }

    /// The sum of counts, as a whole number.
    pub(crate) fn count(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        self.sum(name, labels).to_string().parse().expect("counts are whole numbers")
    }

    pub(crate) fn has(&self, name: &str, labels: &[(&str, &str)]) -> bool {
        !self.of(name, labels).is_empty()
    }

    /// Names and labels of every series.
    pub(crate) fn series(&self) -> Vec<(&str, &BTreeMap<String, String>)> {
        self.0.iter().map(|sample| (sample.name.as_str(), &sample.labels)).collect()
    }
}

fn sample(line: &str) -> Sample {
    let (series, value) = line.rsplit_once(' ').expect("a line ends in a value");
    let (name, labels) = match series.split_once('{') {
        Some((name, rest)) => (name, labels(rest)),
        None => (series, BTreeMap::new()),
    };
    let value = value.parse().unwrap_or_else(|_| panic!("no number: {line}"));
    Sample { name: name.into(), labels, value }
}

/// Labels up to the closing brace, with what was escaped as it was.
fn labels(text: &str) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    let mut rest = text;
    while let Some((key, after)) = rest.split_once("=\"") {
        let mut value = String::new();
        let mut characters = after.chars();
        loop {
            match characters.next().expect("a value ends in a quote") {
                '"' => break,
                '\\' => value.push(match characters.next() {
                    Some('n') => '\n',
                    Some(escaped @ ('"' | '\\')) => escaped,
                    other => panic!("{other:?} is escaped in {text}"),
                }),
                plain => value.push(plain),
            }
        }
        let earlier = labels.insert(key.trim_start_matches(',').to_owned(), value);
        assert_eq!(earlier, None, "{key} twice in {text}");
        rest = characters.as_str();
    }
    assert_eq!(rest, "}", "in {text}");
    labels
}

#[test]
fn a_line_is_taken_apart_as_prometheus_does() {
    let page = Samples::parse("# HELP x y\nx{a=\"1\",b=\"q\\\"\\\\\\n,}= \"} 2.5\nx 1\n");
    assert_eq!(page.sum("x", &[("a", "1")]), 2.5);
    assert_eq!(page.0[0].labels["b"], "q\"\\\n,}= ");
    assert_eq!(page.0[1].labels, BTreeMap::new());
}
