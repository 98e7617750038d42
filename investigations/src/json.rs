//! JSON that programs read: every object has the version of its form.

use serde::Serialize;

/// Version of the form. It grows when a field is removed or changes its meaning; new fields leave it as it is.
pub const VERSION: u32 = 1;

/// An object with the version first.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Versioned<T> {
    version: u32,
    #[serde(flatten)]
    content: T,
}

impl<T> Versioned<T> {
    /// An object of a form that has a version of its own.
    pub const fn of(version: u32, content: T) -> Self {
        Self { version, content }
    }

    /// An object of today's form.
    pub const fn new(content: T) -> Self {
        Self { version: VERSION, content }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_comes_first() {
        #[derive(Serialize)]
        struct Rows {
            rows: [f64; 2],
        }
        let json = serde_json::to_string(&Versioned::new(&Rows { rows: [1.5, 2.0] })).unwrap();
        assert_eq!(json, r#"{"version":1,"rows":[1.5,2.0]}"#);
    }
}
