//! Which processes are exported: by name, executable, cgroup and user.

use std::fmt;

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::process_details::ProcessDetails;

/// Bytes that a compiled expression may take.
const MAX_COMPILED: usize = 1 << 20;

/// Exports the processes that match an entry of `include`, all when it is empty, except those that match an entry of `exclude`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProcessFilter {
    /// Processes to export.
    pub include: Vec<Matcher>,
    /// Processes to leave out.
    pub exclude: Vec<Matcher>,
}

/// Matches processes: each pattern that is given must match.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Matcher {
    /// The `comm` label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comm: Option<Pattern>,
    /// Path of the executable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exe: Option<Pattern>,
    /// Path in the cgroup tree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<Pattern>,
    /// Name of the user, or the uid where it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<Pattern>,
}

/// A regular expression that a whole text must match, as in Prometheus.
#[derive(Clone)]
pub struct Pattern {
    text: String,
    anchored: Regex,
}

impl ProcessFilter {
    /// Returns true if every process is exported.
    #[must_use]
    pub fn admits_all(&self) -> bool {
        self.include.is_empty() && self.exclude.is_empty()
    }

    /// Returns true if a process of this name and with these details is exported.
    #[must_use]
    pub fn admits(&self, comm: &str, details: &ProcessDetails) -> bool {
        let any = |matchers: &[Matcher]| matchers.iter().any(|m| m.matches(comm, details));
        (self.include.is_empty() || any(&self.include)) && !any(&self.exclude)
    }

    /// Keys of entries without patterns.
    pub fn empty_entries(&self) -> impl Iterator<Item = String> {
        let lists = [("include", &self.include), ("exclude", &self.exclude)];
        lists.into_iter().flat_map(|(list, matchers)| {
            let empty = matchers.iter().enumerate().filter(|(_, m)| **m == Matcher::default());
            empty.map(move |(index, _)| format!("processes.{list}[{index}]"))
        })
    }
}

impl Matcher {
    fn matches(&self, comm: &str, details: &ProcessDetails) -> bool {
        [
            (&self.comm, comm),
            (&self.exe, &details.exe),
            (&self.cgroup, &details.cgroup),
            (&self.user, &details.user),
        ]
        .into_iter()
        .all(|(pattern, text)| pattern.as_ref().is_none_or(|pattern| pattern.matches(text)))
    }
}

impl Pattern {
    /// Compiles an expression.
    ///
    /// # Errors
    /// When it is invalid or too large.
    pub fn new(text: &str) -> Result<Self, regex::Error> {
        // Compiled by itself first: an unbalanced parenthesis must not match the added one.
        let compile = |text: &str| RegexBuilder::new(text).size_limit(MAX_COMPILED).build();
        compile(text)?;
        let anchored = compile(&format!("^(?s:{text})$"))?;
        Ok(Self { text: text.to_owned(), anchored })
    }

    /// Returns true if the whole text matches.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        self.anchored.is_match(text)
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::new(&text).map_err(|error| {
            let reason = match error {
                regex::Error::CompiledTooBig(_) => "it is too large".to_owned(),
                // The last line is the message; the others draw the position.
                other => {
                    let message = other.to_string();
                    let last = message.lines().last().unwrap_or_default();
                    last.strip_prefix("error: ").unwrap_or(last).to_owned()
                }
            };
            let problem = format!("is {text:?}, and must be a regular expression: {reason}");
            serde::de::Error::custom(problem)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Option<Pattern> {
        Some(Pattern::new(text).unwrap())
    }

    fn details(exe: &str, user: &str) -> ProcessDetails {
        ProcessDetails { exe: exe.into(), user: user.into(), ..ProcessDetails::default() }
    }

    #[test]
    fn without_entries_every_process_is_exported() {
        assert!(ProcessFilter::default().admits("x", &ProcessDetails::default()));
        assert!(ProcessFilter::default().admits_all());
    }

    #[test]
    fn all_that_an_entry_gives_must_match() {
        let python =
            Matcher { comm: pattern("python3?"), user: pattern("ml|root"), ..Matcher::default() };
        let filter = ProcessFilter { include: vec![python], exclude: vec![] };
        assert!(filter.admits("python", &details("", "ml")));
        assert!(!filter.admits("python", &details("", "games")));
        assert!(!filter.admits("bash", &details("", "ml")));
    }

    #[test]
    fn one_entry_suffices_and_exclusion_wins() {
        let named = |text| Matcher { comm: pattern(text), ..Matcher::default() };
        let of_exe = Matcher { exe: pattern("/opt/.*"), ..Matcher::default() };
        let filter = ProcessFilter {
            include: vec![named("train"), of_exe],
            exclude: vec![named("train"), named("debug")],
        };
        assert!(filter.admits("serve", &details("/opt/serve", "")));
        assert!(!filter.admits("train", &details("/opt/train", "")));
        assert!(!filter.admits("debug", &details("/opt/debug", "")));
        assert!(!filter.admits("serve", &details("/usr/bin/serve", "")));
    }

    #[test]
    fn the_whole_text_must_match_whatever_the_expression_is_made_of() {
        for (text, whole, part) in
            [("a|b", "b", "bc"), ("py", "py", "python"), (".*b", "a\nb", "a\nbc"), ("", "", "a")]
        {
            let pattern = Pattern::new(text).unwrap();
            assert!(pattern.matches(whole), "{text}");
            assert!(!pattern.matches(part), "{text}");
        }
        assert!(Pattern::new("a)(b").is_err());
        assert!(Pattern::new("(x{1000}){1000}").is_err());
    }
}
