//! Parses a page in Prometheus' text format 0.0.4, and keeps DCGM's metrics. The source is not trusted: a page is accepted as a
//! whole or rejected, and everything in it has a limit.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use gpucause_page::foreign::{ForeignFamily, ForeignKind, ForeignSample, Labels, PREFIX};

/// Maximum series of a page. A host with 16 GPUs in 7 instances each has a tenth of it at 100 fields.
const MAX_SAMPLES: usize = 100_000;
/// Maximum metrics of a page.
const MAX_FAMILIES: usize = 4_096;
/// Maximum labels of a series.
const MAX_LABELS: usize = 64;
/// Maximum bytes of a name.
const MAX_NAME: usize = 256;
/// Maximum bytes of a label's value, and of a help text.
const MAX_TEXT: usize = 4_096;
/// Characters of a line that an error message quotes.
const MAX_QUOTED: usize = 64;

/// Suffixes of OpenMetrics: a metric whose name is that of another one and a suffix would be ambiguous.
const SUFFIXES: [&str; 8] =
    ["_total", "_created", "_bucket", "_count", "_sum", "_info", "_gcount", "_gsum"];

/// The prefix of our own metrics. A page with them is from this or another gpucause, and its values would circulate forever.
const OWN_PREFIX: &str = "gpucause_";

/// Why a page is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    /// A line is not of the format.
    #[error("line {line} is not of the text format: {problem} in {text:?}")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// The problem.
        problem: &'static str,
        /// Its beginning.
        text: String,
    },
    /// It is not text.
    #[error("it is not UTF-8 text")]
    NotText,
    /// It is a page of gpucause.
    #[error(
        "it is gpucause's own page; set the address of dcgm-exporter, and move one of them to another port"
    )]
    Own,
    /// It exceeds a limit.
    #[error("it has more than {0}")]
    TooMuch(&'static str),
    /// It has no metrics of DCGM.
    #[error("it has no metric whose name begins with {PREFIX}")]
    Empty,
}

/// DCGM's metrics of a page, in its order, without timestamps.
///
/// # Errors
/// When a line is malformed, or a limit is exceeded.
pub fn parse(page: &[u8]) -> Result<Vec<ForeignFamily>, PageError> {
    let text = std::str::from_utf8(page).map_err(|_| PageError::NotText)?;
    let mut reader = Reader::default();
    for (index, line) in text.lines().enumerate() {
        reader.line(line).map_err(|refusal| match refusal {
            Refusal::Page(error) => error,
            Refusal::Line(problem) => {
                let text = line.chars().take(MAX_QUOTED).collect();
                PageError::Line { line: index + 1, problem, text }
            }
        })?;
    }
    reader.families()
}

enum Refusal {
    Page(PageError),
    Line(&'static str),
}

impl From<&'static str> for Refusal {
    fn from(problem: &'static str) -> Self {
        Self::Line(problem)
    }
}

/// A family while the page is read.
struct Draft {
    name: Arc<str>,
    help: Option<Arc<str>>,
    /// `Some(None)` for histograms and summaries, which are left out.
    kind: Option<Option<ForeignKind>>,
    samples: Vec<ForeignSample>,
    /// Its label sets, sorted by key and without empty values: Prometheus takes those for the same series.
    seen: HashSet<Labels>,
}

#[derive(Default)]
struct Reader {
    drafts: Vec<Draft>,
    by_name: HashMap<Arc<str>, usize>,
    texts: HashSet<Arc<str>>,
    samples: usize,
}

impl Reader {
    fn line(&mut self, line: &str) -> Result<(), Refusal> {
        let line = line.trim_matches([' ', '\t']);
        match line.strip_prefix('#') {
            Some(comment) => self.comment(comment),
            None if line.is_empty() => Ok(()),
            None => self.sample(line),
        }
    }

    fn comment(&mut self, comment: &str) -> Result<(), Refusal> {
        let comment = comment.trim_start_matches([' ', '\t']);
        let (word, rest) = comment.split_once([' ', '\t']).unwrap_or((comment, ""));
        if !matches!(word, "HELP" | "TYPE") {
            return Ok(());
        }
        let rest = rest.trim_start_matches([' ', '\t']);
        let (name, text) = rest.split_once([' ', '\t']).unwrap_or((rest, ""));
        if !is_name(name, true) {
            return Err("a metric's name".into());
        }
        if !name.starts_with(PREFIX) {
            return Ok(());
        }
        let help =
            if word == "HELP" { Some(self.interned(unescaped(text, false)?)?) } else { None };
        let draft = self.draft(name)?;
        if let Some(help) = help {
            draft.help.get_or_insert(help);
            return Ok(());
        }
        let kind = match text.trim_matches([' ', '\t']) {
            "counter" => Some(ForeignKind::Counter),
            "gauge" => Some(ForeignKind::Gauge),
            "untyped" => Some(ForeignKind::Untyped),
            "histogram" | "summary" => None,
            _ => return Err("a type".into()),
        };
        draft.kind.get_or_insert(kind);
        Ok(())
    }

    fn sample(&mut self, line: &str) -> Result<(), Refusal> {
        let name_end = line.find(['{', ' ', '\t']).ok_or("no value")?;
        let (name, rest) = line.split_at(name_end);
        if !is_name(name, true) {
            return Err("a metric's name".into());
        }
        if name.starts_with(OWN_PREFIX) {
            return Err(Refusal::Page(PageError::Own));
        }
        let rest = rest.trim_start_matches([' ', '\t']);
        let kept = name.starts_with(PREFIX);
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => self.labels(rest, kept)?,
            None => (Box::default(), rest),
        };
        let mut words = rest.split([' ', '\t']).filter(|word| !word.is_empty());
        let value: f64 =
            words.next().ok_or("no value")?.parse().map_err(|_| "a value that is no number")?;
        if words.next().is_some_and(|time| time.parse::<i64>().is_err()) || words.next().is_some() {
            return Err("text after the value".into());
        }
        if kept { self.keep(name, labels, value) } else { Ok(()) }
    }

    fn keep(&mut self, name: &str, labels: Labels, value: f64) -> Result<(), Refusal> {
        self.samples += 1;
        if self.samples > MAX_SAMPLES {
            return Err(Refusal::Page(PageError::TooMuch("100,000 series")));
        }
        let draft = self.draft(name)?;
        let mut key = labels.to_vec();
        key.retain(|(_, value)| !value.is_empty());
        key.sort_unstable();
        // The first of duplicate series wins, as in Prometheus.
        if draft.seen.insert(key.into()) {
            draft.samples.push(ForeignSample { labels, value });
        }
        Ok(())
    }

    /// The labels after an opening brace, and what follows the closing one.
    fn labels<'a>(&mut self, text: &'a str, kept: bool) -> Result<(Labels, &'a str), Refusal> {
        let mut labels: Vec<(Arc<str>, Arc<str>)> = Vec::new();
        let mut count = 0;
        let mut rest = text;
        loop {
            rest = rest.trim_start_matches([' ', '\t']);
            if let Some(after) = rest.strip_prefix('}') {
                return Ok((labels.into(), after));
            }
            let (key, after) = rest.split_once('=').ok_or("a label without value")?;
            let key = key.trim_matches([' ', '\t']);
            if !is_name(key, false) || key == "__name__" {
                return Err("a label's name".into());
            }
            let after = after.trim_start_matches([' ', '\t']).strip_prefix('"');
            let after = after.ok_or("a label's value without quotes")?;
            let end = closing_quote(after).ok_or("a label's value without end")?;
            let value = unescaped(&after[..end], true)?;
            count += 1;
            if count > MAX_LABELS {
                return Err("too many labels".into());
            }
            if kept {
                if labels.iter().any(|(other, _)| **other == *key) {
                    return Err("a duplicate label".into());
                }
                labels.push((self.interned(key.to_owned())?, self.interned(value)?));
            }
            rest = after[end + 1..].trim_start_matches([' ', '\t']);
            rest = match rest.strip_prefix(',') {
                Some(next) => next,
                None if rest.starts_with('}') => rest,
                None => return Err("labels without comma between them".into()),
            };
        }
    }

    fn draft(&mut self, name: &str) -> Result<&mut Draft, Refusal> {
        let index = match self.by_name.get(name) {
            Some(&index) => index,
            None if self.drafts.len() == MAX_FAMILIES => {
                return Err(Refusal::Page(PageError::TooMuch("4,096 metrics")));
            }
            None => {
                let name: Arc<str> = name.into();
                self.drafts.push(Draft {
                    name: Arc::clone(&name),
                    help: None,
                    kind: None,
                    samples: Vec::new(),
                    seen: HashSet::new(),
                });
                self.by_name.insert(name, self.drafts.len() - 1);
                self.drafts.len() - 1
            }
        };
        self.drafts.get_mut(index).ok_or(Refusal::Line("a metric's name"))
    }

    /// One copy of each text: most are the same in every series.
    fn interned(&mut self, text: String) -> Result<Arc<str>, Refusal> {
        if text.len() > MAX_TEXT {
            return Err("a text that is too long".into());
        }
        if let Some(known) = self.texts.get(text.as_str()) {
            return Ok(Arc::clone(known));
        }
        let text: Arc<str> = text.into();
        self.texts.insert(Arc::clone(&text));
        Ok(text)
    }

    fn families(self) -> Result<Vec<ForeignFamily>, PageError> {
        let names: HashSet<Arc<str>> = self.by_name.into_keys().collect();
        let part_of = |name: &str, whole: &dyn Fn(&str) -> bool| {
            SUFFIXES.iter().any(|suffix| name.strip_suffix(suffix).is_some_and(whole))
        };
        let families = self.drafts.into_iter().filter_map(|draft| {
            let kind = draft.kind.unwrap_or(Some(ForeignKind::Untyped))?;
            let clashes = part_of(&draft.name, &|whole| names.contains(whole));
            (!clashes && !draft.samples.is_empty()).then(|| ForeignFamily {
                name: draft.name,
                help: draft.help.unwrap_or_default(),
                kind,
                samples: draft.samples,
            })
        });
        let families: Vec<_> = families.collect();
        if families.is_empty() { Err(PageError::Empty) } else { Ok(families) }
    }
}

/// Returns true if it is the name of a metric, or, without colons, of a label.
fn is_name(text: &str, colons: bool) -> bool {
    let first = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_' || (colons && byte == b':');
    let bytes = text.as_bytes();
    bytes.len() <= MAX_NAME
        && bytes.first().is_some_and(|&byte| first(byte))
        && bytes.iter().all(|&byte| first(byte) || byte.is_ascii_digit())
}

/// The index of the quote that ends a label's value.
fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })
}

fn unescaped(text: &str, quotes: bool) -> Result<String, &'static str> {
    let mut plain = String::with_capacity(text.len().min(MAX_TEXT));
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            plain.push(character);
            continue;
        }
        match characters.next() {
            Some('\\') => plain.push('\\'),
            Some('n') => plain.push('\n'),
            Some('"') if quotes => plain.push('"'),
            // Help texts of programs that do not escape.
            Some(other) if !quotes => plain.extend(['\\', other]),
            None if !quotes => plain.push('\\'),
            _ => return Err("an escape"),
        }
    }
    Ok(plain)
}

#[cfg(test)]
mod tests;
