//! A call stack as text, and by what it is known.

use std::borrow::Cow;

use crate::recording::{Stack, StackFrame};

/// A frame in the column `frames`.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct FrameText<'a> {
    pub(super) address: u64,
    #[serde(default, skip_serializing_if = "Option::is_none", borrow)]
    pub(super) function: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none", borrow)]
    pub(super) file: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) line: Option<u32>,
}

pub(super) fn frames_text(stack: &Stack) -> String {
    let frames: Vec<_> = stack
        .frames
        .iter()
        .map(|StackFrame { address, function, file, line }| FrameText {
            address: *address,
            function: function.as_deref().map(Into::into),
            file: file.as_deref().map(Into::into),
            line: *line,
        })
        .collect();
    serde_json::to_string(&frames).unwrap_or_default()
}

/// FNV-1a: known well enough that others can compute it too.
pub(super) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
