//! A document as one value of a type.

use serde::de::DeserializeOwned;

use crate::complaint::{Complaint, Position};
use crate::outline::{self, Node};
use crate::reader::joined;
use crate::refusals;

pub use crate::refusals::Refusals;

/// A YAML document.
#[derive(Debug)]
pub struct Document(Node);

impl Document {
    /// Parses a text.
    ///
    /// # Errors
    /// With the first syntax error.
    pub fn parse(text: &str) -> Result<Self, Complaint> {
        outline::read(text).map(Self)
    }

    /// Reads it as a `T`. Values that `T` refuses are removed from the document and returned; `None` if the rest is no `T` either.
    pub fn read<T: DeserializeOwned>(&mut self) -> (Option<T>, Refusals) {
        refusals::read(&mut self.0)
    }

    /// Finds a key of the value that was read: its name in the document, where refused items count too, and the position of the innermost
    /// part of it that exists.
    pub fn locate(&mut self, key: &str) -> (String, Option<Position>) {
        let (mut keys, mut position, mut node) = (Vec::new(), None, Some(&mut self.0));
        for part in key.split(['.', '[']) {
            let index = part.strip_suffix(']').and_then(|index| index.parse().ok());
            let of_list = index.zip(node.as_deref());
            let own = match of_list.and_then(|(nth, list)| list.index_of_kept(nth)) {
                Some(index) => format!("[{index}]"),
                None => part.to_owned(),
            };
            node = node.and_then(|node| node.child_mut(&own));
            position = node.as_deref().map(|node| node.position).or(position);
            keys.push(own);
        }
        (joined(keys.iter().map(String::as_str)), position)
    }
}

/// Reads a text as a `T`.
///
/// # Errors
/// With all values that `T` refuses, or with the first syntax error.
pub fn typed<T: DeserializeOwned>(text: &str) -> Result<T, Vec<Complaint>> {
    match typed_in_part(text)? {
        (Some(value), refusals) if refusals.is_empty() => Ok(value),
        (_, refusals) => Err(refusals.into_complaints()),
    }
}

/// Reads a text as a `T`, without the values that `T` refuses; `None` if the rest is no `T` either.
///
/// # Errors
/// With the first syntax error.
pub fn typed_in_part<T: DeserializeOwned>(
    text: &str,
) -> Result<(Option<T>, Refusals), Vec<Complaint>> {
    let mut document = Document::parse(text).map_err(|complaint| vec![complaint])?;
    Ok(document.read())
}
