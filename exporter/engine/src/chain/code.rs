//! Where the code of a program spends its time.

use serde::{Deserialize, Serialize};

use super::Chain;
use crate::template::number;

/// Functions that the sentence has; the chain has all.
const SHOWN: usize = 3;

/// A function's share of the samples of a victim thread; of a lock's holder where the victim waits for that.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CodeShare {
    /// The function; empty where only its file is known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub function: String,
    /// Its file: Python source, or the library or executable of compiled code.
    pub file: String,
    /// The line that ran, from 1; 0 for compiled code.
    #[serde(skip_serializing_if = "is_zero")]
    pub line: u32,
    /// Share of the samples, 0 to 1.
    pub share: f64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(line: &u32) -> bool {
    *line == 0
}

impl CodeShare {
    /// Such as `71 % in dataset.py:42 (__getitem__)`.
    pub fn describe(&self) -> String {
        let line = match self.line {
            0 => String::new(),
            line => format!(":{line}"),
        };
        let function = match &*self.function {
            "" => String::new(),
            function => format!(" ({function})"),
        };
        let file = self.file.rsplit('/').next().unwrap_or_default();
        format!("{} in {file}{line}{function}", number(self.share, "percent"))
    }
}

impl Chain {
    /// A sentence, and after it where the victim's code spent the time, or what a lock's holder ran, with the lock or without.
    pub(crate) fn with_code(&self, sentence: &str) -> String {
        let code: Vec<_> = self.code.iter().take(SHOWN).map(CodeShare::describe).collect();
        let has_holder = self.cause.has_holder();
        if let (true, Some(holder), false) = (has_holder, &self.culprit, code.is_empty()) {
            return format!("{sentence} {} ran: {}.", holder.comm, code.join(", "));
        }
        match sentence.strip_suffix('.') {
            Some(sentence) if !code.is_empty() => format!("{sentence}: {}.", code.join(", ")),
            _ => sentence.to_owned(),
        }
    }
}
