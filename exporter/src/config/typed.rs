//! A document as one value of a type.

use serde::de::DeserializeOwned;

use super::{Complaint, outline, refusals};

/// Parses a text as far as its type goes.
///
/// # Errors
/// With all errors of types in it, or with its first error as a document.
pub(crate) fn typed<T: DeserializeOwned>(text: &str) -> Result<T, Vec<Complaint>> {
    let mut document = outline::read(text).map_err(|complaint| vec![complaint])?;
    match refusals::read(&mut document) {
        (Some(value), refusals) if refusals.is_empty() => Ok(value),
        (_, refusals) => Err(refusals.into_complaints()),
    }
}
