//! The share of a thread's time that probes may take, as users write it.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// The accepted form, for messages.
const FORM: &str =
    "a share of a thread's time above 0 and up to 1, such as 2% or 0.02, or off for no limit";

/// The share of a thread's time that the probes on its calls may take; none for no limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget(pub Option<f64>);

impl Default for Budget {
    fn default() -> Self {
        Self(Some(0.02))
    }
}

impl FromStr for Budget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self(None));
        }
        let (number, unit) = match text.strip_suffix('%') {
            Some(number) => (number.trim_end(), 0.01),
            None => (text, 1.0),
        };
        let share = number.parse::<f64>().map(|number| number * unit).unwrap_or(f64::NAN);
        if share > 0.0 && share <= 1.0 {
            return Ok(Self(Some(share)));
        }
        Err(format!("{text:?} is no budget; write {FORM}"))
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            // Rounded to more digits than anyone writes, so that 2 % is not printed as 2.0000000000000004 %.
            Some(share) => write!(f, "{}%", (share * 1e8).round() / 1e6),
            None => f.write_str("off"),
        }
    }
}

impl Serialize for Budget {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Budget {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(BudgetVisitor)
    }
}

struct BudgetVisitor;

impl BudgetVisitor {
    fn parsed<E: serde::de::Error>(text: &str) -> Result<Budget, E> {
        text.parse().map_err(|_| E::custom(format!("is {text:?}, and must be {FORM}")))
    }
}

impl Visitor<'_> for BudgetVisitor {
    type Value = Budget;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(FORM)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Budget, E> {
        Self::parsed(text)
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Budget, E> {
        Self::parsed(&number.to_string())
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Budget, E> {
        Self::parsed(&number.to_string())
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Budget, E> {
        Self::parsed(&number.to_string())
    }

    /// Takes booleans, since some versions of YAML parse `off` as false.
    fn visit_bool<E: serde::de::Error>(self, on: bool) -> Result<Budget, E> {
        if on { Self::parsed("on") } else { Ok(Budget(None)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_a_share_in_either_form_or_off() {
        for (text, share) in [
            ("2%", Some(0.02)),
            ("2 %", Some(0.02)),
            ("0.5%", Some(0.005)),
            ("0.02", Some(0.02)),
            ("1", Some(1.0)),
            ("100%", Some(1.0)),
            ("off", None),
        ] {
            assert_eq!(text.parse(), Ok(Budget(share)), "{text}");
        }
        for text in ["", "%", "0", "0%", "101%", "1.1", "-1%", "two", "NaN", "inf", "no", "2%%"] {
            let refusal = text.parse::<Budget>().unwrap_err();
            assert!(refusal.contains("no budget") && refusal.contains("2%"), "{refusal}");
        }
    }

    #[test]
    fn a_budget_is_written_as_it_is_read() {
        for text in ["2%", "0.5%", "100%", "12.5%", "off"] {
            assert_eq!(text.parse::<Budget>().unwrap().to_string(), text);
        }
        assert_eq!("0.07".parse::<Budget>().unwrap().to_string(), "7%");
    }
}
