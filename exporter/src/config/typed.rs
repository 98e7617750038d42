//! A document as one value of a type.

use serde::de::DeserializeOwned;

use super::{Complaint, outline};

/// Parses a text as far as its type goes.
///
/// # Errors
/// With the first error in it.
pub(crate) fn typed<T: DeserializeOwned>(text: &str) -> Result<T, Complaint> {
    Ok(T::deserialize(&outline::read(text)?)?)
}
