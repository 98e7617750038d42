//! A document as one value of a type.

use serde::de::DeserializeOwned;

use super::{Complaint, outline};

/// What a text says, as far as the type can tell right from wrong.
///
/// # Errors
/// With the first thing that is wrong.
pub(crate) fn typed<T: DeserializeOwned>(text: &str) -> Result<T, Complaint> {
    let document = outline::read(text)
        .map_err(|error| Complaint { place: error.place, problem: error.problem })?;
    T::deserialize(&document)
        .map_err(|refusal| Complaint { place: refusal.place, problem: refusal.to_string() })
}
