//! A serde deserializer from the tree of a document, whose errors name the key, its position, the value and the accepted values.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, Expected, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;

use crate::complaint::{Complaint, Position};
use crate::nearest::nearest;
use crate::outline::{Key, Node, Number, Value};
use crate::password::without_password;

/// Why a value is rejected.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// Its path, the innermost key first.
    keys: Vec<String>,
    position: Option<Position>,
    problem: Problem,
}

#[derive(Debug)]
enum Problem {
    /// The accepted values.
    Form(String),
    /// An unknown key, and the known ones.
    NoSuchKey(String, &'static [&'static str]),
    /// A complete message, the value included.
    Message(String),
}

impl Refusal {
    fn new(problem: Problem) -> Self {
        Self { keys: Vec::new(), position: None, problem }
    }

    /// Keeps the innermost position.
    fn at(mut self, node: &Node) -> Self {
        self.position.get_or_insert(node.position);
        if let Problem::Form(form) = &self.problem {
            self.problem = Problem::Message(format!("is {}, and must be {form}", node.value));
        }
        self
    }

    fn under(mut self, key: impl Into<String>) -> Self {
        self.keys.push(key.into());
        self
    }

    /// The keys and indices that lead to what is refused, the outermost first.
    pub(crate) fn path(&self) -> Vec<&str> {
        let unknown = match &self.problem {
            Problem::NoSuchKey(key, _) => Some(&**key),
            _ => None,
        };
        self.section().chain(unknown).collect()
    }

    fn section(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().rev().map(String::as_str)
    }
}

/// Keys and indices as one, such as `limits.scrapes`; empty for the document.
pub(crate) fn joined<'a>(keys: impl IntoIterator<Item = &'a str>) -> String {
    let mut path = String::new();
    for key in keys {
        if !path.is_empty() && !key.starts_with('[') {
            path.push('.');
        }
        path += key;
    }
    path
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = joined(self.section());
        let section = if key.is_empty() { "the file" } else { &key };
        match &self.problem {
            Problem::Form(form) => write!(f, "{section} must be {form}"),
            Problem::Message(problem) => write!(f, "{section} {problem}"),
            Problem::NoSuchKey(found, known) => {
                write!(f, "{section} has no key {found}")?;
                if let Some(near) = nearest(found, known.iter().copied()) {
                    write!(f, " (did you mean {near}?)")?;
                }
                write!(f, "; it has {}", known.join(", "))
            }
        }
    }
}

impl std::error::Error for Refusal {}

impl From<Refusal> for Complaint {
    fn from(refusal: Refusal) -> Self {
        Self { position: refusal.position, problem: refusal.to_string() }
    }
}

impl serde::de::Error for Refusal {
    fn custom<T: fmt::Display>(problem: T) -> Self {
        Self::new(Problem::Message(problem.to_string()))
    }

    fn invalid_type(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(Problem::Form(form(&expected.to_string())))
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(Problem::Form(form(&expected.to_string())))
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        Self::new(Problem::NoSuchKey(field.to_owned(), expected))
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        Self::new(Problem::NoSuchKey(variant.to_owned(), expected))
    }
}

/// serde's name of a type, in words for users.
fn form(expected: &str) -> String {
    match expected {
        "f32" | "f64" => "a number".into(),
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number from 0 up".into(),
        "a boolean" => "true or false".into(),
        "a string" => "text".into(),
        "a sequence" => "a list, as in [a, b]".into(),
        "a map" => "a section: keys with values".into(),
        other if other.starts_with("struct ") => "a section: keys with values".into(),
        other => other.to_owned(),
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null | Self::Refused => f.write_str("empty"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Number(_, text) => f.write_str(text),
            Self::Text(text) => write!(f, "{:?}", without_password(text)),
            Self::List(_) => f.write_str("a list"),
            Self::Map(_) => f.write_str("a section"),
        }
    }
}

impl<'de> Deserializer<'de> for &'de Node {
    type Error = Refusal;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        let value: Result<_, Refusal> = match &self.value {
            Value::Null | Value::Refused => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Number(Number::Unsigned(number), _) => visitor.visit_u64(*number),
            Value::Number(Number::Signed(number), _) => visitor.visit_i64(*number),
            Value::Number(Number::Float(number), _) => visitor.visit_f64(*number),
            Value::Text(text) => visitor.visit_borrowed_str(text),
            Value::List(items) => visitor.visit_seq(Items(items.iter().enumerate())),
            Value::Map(entries) => visitor.visit_map(Entries(entries.iter(), None)),
        };
        value.map_err(|refusal| refusal.at(self))
    }

    /// Accepts numbers and booleans: names may look like them.
    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        match &self.value {
            Value::Number(_, text) => {
                visitor.visit_borrowed_str(text).map_err(|refusal: Refusal| refusal.at(self))
            }
            Value::Bool(value) => {
                visitor.visit_string(value.to_string()).map_err(|refusal: Refusal| refusal.at(self))
            }
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        visitor.visit_newtype_struct(self)
    }

    /// Null is an empty section: its keys may all be commented out.
    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        match &self.value {
            Value::Null => visitor.visit_map(Entries([].iter(), None)),
            Value::List(_) => {
                Err(Refusal::invalid_type(Unexpected::Seq, &"a map")).map_err(|r| r.at(self))
            }
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        self.deserialize_map(visitor)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        match &self.value {
            Value::Null => visitor.visit_seq(Items([].iter().enumerate())),
            _ => self.deserialize_any(visitor),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct
        enum identifier ignored_any
    }
}

struct Items<'a>(std::iter::Enumerate<std::slice::Iter<'a, Node>>);

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = Refusal;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Refusal> {
        let Some((index, node)) = self.0.find(|(_, node)| !node.is_refused()) else {
            return Ok(None);
        };
        seed.deserialize(node)
            .map(Some)
            .map_err(|refusal| refusal.at(node).under(format!("[{index}]")))
    }
}

/// The remaining entries, and the one whose key was read.
struct Entries<'a>(std::slice::Iter<'a, (Key, Node)>, Option<&'a (Key, Node)>);

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = Refusal;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Refusal> {
        self.1 = self.0.find(|(_, node)| !node.is_refused());
        let Some((key, _)) = self.1 else { return Ok(None) };
        let name: StrDeserializer<'_, Refusal> = key.text.as_str().into_deserializer();
        let refused = |mut refusal: Refusal| {
            refusal.position.get_or_insert(key.position);
            refusal
        };
        seed.deserialize(name).map(Some).map_err(refused)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Refusal> {
        let Some((key, node)) = self.1 else {
            return Err(Refusal::custom("has a value without a key"));
        };
        seed.deserialize(node).map_err(|refusal| refusal.at(node).under(&key.text))
    }
}
