//! A document as one value of a type.

use serde::de::DeserializeOwned;

use super::refusals::Refusals;
use super::{Complaint, outline, refusals};

/// Parses a text as far as its type goes.
///
/// # Errors
/// With all errors of types in it, or with its first error as a document.
pub(crate) fn typed<T: DeserializeOwned>(text: &str) -> Result<T, Vec<Complaint>> {
    match typed_in_part(text)? {
        (Some(value), refusals) if refusals.is_empty() => Ok(value),
        (_, refusals) => Err(refusals.into_complaints()),
    }
}

/// Parses a text without what is refused; `None` when it is no such value without that.
///
/// # Errors
/// With its first error as a document.
pub(crate) fn typed_in_part<T: DeserializeOwned>(
    text: &str,
) -> Result<(Option<T>, Refusals), Vec<Complaint>> {
    let mut document = outline::read(text).map_err(|complaint| vec![complaint])?;
    Ok(refusals::read(&mut document))
}
