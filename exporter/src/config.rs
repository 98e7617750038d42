//! Files of settings: how they are read, and how is told what is wrong with them.

mod nearest;
mod outline;
mod reader;
mod typed;

pub use outline::Place;
pub(crate) use typed::typed;

/// One thing that is wrong with a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complaint {
    /// Where it stands.
    pub place: Option<Place>,
    /// Key, value and accepted form.
    pub problem: String,
}
