//! All errors of types in a document: a value that is refused is taken out, and the rest is read again.

use serde::de::DeserializeOwned;

use crate::complaint::Complaint;
use crate::outline::{Node, Value};
use crate::reader::{Refusal, joined};

/// Errors that are reported at most: each takes another pass over the document.
const MAX: usize = 50;

/// Why values of a document are refused.
#[derive(Debug, Default)]
pub struct Refusals(Vec<Refusal>);

impl Refusals {
    /// Returns true if nothing is refused.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if this value, or one in it, is refused: more errors of it may follow from that.
    #[must_use]
    pub fn concern(&self, key: &str) -> bool {
        self.0.iter().any(|refusal| {
            let path = joined(refusal.path());
            let rest = path.strip_prefix(key);
            rest.is_some_and(|rest| {
                key.is_empty() || rest.is_empty() || rest.starts_with(['.', '['])
            })
        })
    }

    /// A complaint for each refused value, and a last one where there may be more.
    #[must_use]
    pub fn into_complaints(self) -> Vec<Complaint> {
        let problem = format!("these are the first {MAX} errors; there may be more");
        let more = (self.0.len() == MAX).then_some(Complaint { position: None, problem });
        self.0.into_iter().map(Complaint::from).chain(more).collect()
    }
}

/// The value of a document without what is refused, which is taken out of it; `None` when it is none without that.
pub(crate) fn read<T: DeserializeOwned>(document: &mut Node) -> (Option<T>, Refusals) {
    let mut refusals = Refusals::default();
    while refusals.0.len() < MAX && !document.is_refused() {
        let refusal = match T::deserialize(&*document) {
            Ok(value) => return (Some(value), refusals),
            Err(refusal) => refusal,
        };
        let path = refusal.path();
        take_out(document, &path);
        if !refusals.concern(&joined(path)) {
            refusals.0.push(refusal);
        }
    }
    (None, refusals)
}

/// Takes out a value, or the innermost section of it that exists.
fn take_out(node: &mut Node, path: &[&str]) {
    if let Some((key, rest)) = path.split_first()
        && let Some(child) = node.child_mut(key)
    {
        take_out(child, rest);
    } else {
        node.value = Value::Refused;
    }
}
