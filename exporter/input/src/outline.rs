//! A YAML document as a tree of values with their positions. Only this module depends on the YAML crate.

use std::fmt;

use crate::complaint::{Complaint, Position};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, MergeKeyPolicy, NonFiniteFloatPolicy, Spanned};

impl From<Location> for Position {
    fn from(location: Location) -> Self {
        Self { line: location.line(), column: location.column() }
    }
}

/// A value and its position.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) position: Position,
    pub(crate) value: Value,
}

#[derive(Debug)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    /// With its source text.
    Number(Number, String),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
    /// Was refused, and is as if it were not there.
    Refused,
}

impl Node {
    pub(crate) const fn is_refused(&self) -> bool {
        matches!(self.value, Value::Refused)
    }

    /// The index of the n-th item of a list that is not refused.
    pub(crate) fn index_of_kept(&self, nth: usize) -> Option<usize> {
        let Value::List(items) = &self.value else { return None };
        let kept = items.iter().enumerate().filter(|(_, item)| !item.is_refused());
        kept.map(|(index, _)| index).nth(nth)
    }

    /// The value of a key, or of an index such as `[0]`.
    pub(crate) fn child_mut(&mut self, key: &str) -> Option<&mut Self> {
        let child = match &mut self.value {
            Value::Map(entries) => {
                entries.iter_mut().find(|(own, _)| own.text == key).map(|(_, node)| node)
            }
            Value::List(items) => {
                let index = key.trim_matches(['[', ']']).parse::<usize>().ok()?;
                items.get_mut(index)
            }
            _ => None,
        };
        child.filter(|child| !child.is_refused())
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Number {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
}

/// The key of a mapping's entry.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) position: Position,
    pub(crate) text: String,
}

/// Levels of nested lists and sections; a configuration has five. Each takes stack, and the threads that reload have 2 MiB.
const MAX_DEPTH: usize = 16;

/// Reads a document. One without content is null.
pub(crate) fn read(text: &str) -> Result<Node, Complaint> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: MAX_DEPTH },
        strict_booleans: true,
        with_snippet: false,
        merge_keys: MergeKeyPolicy::Error,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
    };
    let tree: Spanned<Tree> =
        serde_saphyr::from_str_with_options(text, options).map_err(|error| syntax_error(&error))?;
    Ok(tree.value.at(tree.referenced, text))
}

fn syntax_error(error: &serde_saphyr::Error) -> Complaint {
    let position = error.location().map(Position::from);
    let problem = match error.without_snippet() {
        serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("{key} is given twice, and must be given once")
        }
        serde_saphyr::Error::MultipleDocuments { .. } => {
            "a second document begins; a configuration has one document".to_owned()
        }
        other => {
            let message = other.to_string();
            // `Complaint` has the position.
            let message = message.rsplit_once(" at line ").map_or(&*message, |(text, _)| text);
            format!("not valid YAML: {message}")
        }
    };
    Complaint { position, problem }
}

/// The form that the YAML crate deserializes.
#[derive(Debug)]
enum Tree {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Spanned<Tree>>),
    Map(Vec<(Spanned<String>, Spanned<Tree>)>),
}

impl Tree {
    fn at(self, location: Location, source: &str) -> Node {
        let value = match self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(value),
            Self::Number(number) => Value::Number(number, number.text(location, source)),
            Self::Text(text) => Value::Text(text),
            Self::List(items) => {
                Value::List(items.into_iter().map(|i| i.value.at(i.referenced, source)).collect())
            }
            Self::Map(entries) => {
                let entry = |(key, node): (Spanned<String>, Spanned<Self>)| {
                    let position = key.referenced.into();
                    (Key { position, text: key.value }, node.value.at(node.referenced, source))
                };
                Value::Map(entries.into_iter().map(entry).collect())
            }
        };
        Node { position: location.into(), value }
    }
}

impl Number {
    /// Its source text, where that is known.
    fn text(self, location: Location, source: &str) -> String {
        let span = location.span();
        let written = span.byte_offset().zip(span.byte_len()).and_then(|(offset, length)| {
            let begin = usize::try_from(offset).ok()?;
            source.get(begin..begin.checked_add(usize::try_from(length).ok()?)?)
        });
        match (written, self) {
            (Some(text), _) if !text.is_empty() => text.to_owned(),
            (_, Self::Unsigned(number)) => number.to_string(),
            (_, Self::Signed(number)) => number.to_string(),
            (_, Self::Float(number)) => number.to_string(),
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }

    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Number(Number::Unsigned(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Number(Number::Signed(value)))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree::Number(Number::Float(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Tree::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Tree, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry()? {
            entries.push(entry);
        }
        Ok(Tree::Map(entries))
    }
}
