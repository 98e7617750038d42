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
    /// With its first error as a document.
    pub fn parse(text: &str) -> Result<Self, Complaint> {
        outline::read(text).map(Self)
    }

    /// Its value without what is refused, which is taken out of it; `None` when it is no such value without that.
    pub fn read<T: DeserializeOwned>(&mut self) -> (Option<T>, Refusals) {
        refusals::read(&mut self.0)
    }

    /// A key of what was read as it is in the document, and the position of its value or of the innermost section of it that exists.
    /// Items that are refused are not read, but count in the document.
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

/// Parses a text as far as its type goes.
///
/// # Errors
/// With all errors of types in it, or with its first error as a document.
pub fn typed<T: DeserializeOwned>(text: &str) -> Result<T, Vec<Complaint>> {
    match typed_in_part(text)? {
        (Some(value), refusals) if refusals.is_empty() => Ok(value),
        (_, refusals) => Err(refusals.into_complaints()),
    }
}

/// Parses a text without what is refused; `None` when it is no such value without that.
///
/// # Errors
/// With its first error as a document.
pub fn typed_in_part<T: DeserializeOwned>(
    text: &str,
) -> Result<(Option<T>, Refusals), Vec<Complaint>> {
    let mut document = Document::parse(text).map_err(|complaint| vec![complaint])?;
    Ok(document.read())
}
