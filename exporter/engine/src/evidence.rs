//! The numbers behind a chain.

use std::borrow::Cow;
use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Named numbers in display order. Names end in their unit.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Evidence(pub Vec<(Cow<'static, str>, f64)>);

/// How many numbers a chain usually has.
const USUAL: usize = 16;

impl Evidence {
    /// Sets a number.
    #[must_use]
    pub fn with(self, name: &'static str, value: f64) -> Self {
        self.set(Cow::Borrowed(name), value)
    }

    fn set(mut self, name: Cow<'static, str>, value: f64) -> Self {
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some(entry) => entry.1 = value,
            None => {
                if self.0.is_empty() {
                    self.0.reserve_exact(USUAL);
                }
                self.0.push((name, value));
            }
        }
        self
    }

    /// Sets all numbers of `other`.
    #[must_use]
    pub fn and(self, other: &Self) -> Self {
        other.0.iter().fold(self, |all, (name, value)| all.set(name.clone(), *value))
    }

    /// A number by name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }
}

impl Serialize for Evidence {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Evidence {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Numbers;
        impl<'de> Visitor<'de> for Numbers {
            type Value = Evidence;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of names to numbers")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Evidence, A::Error> {
                let mut evidence = Evidence::default();
                while let Some((name, value)) = map.next_entry::<String, f64>()? {
                    evidence = evidence.set(Cow::Owned(name), value);
                }
                Ok(evidence)
            }
        }
        deserializer.deserialize_map(Numbers)
    }
}
