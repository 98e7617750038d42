//! Call stacks as JSON, and their hash.

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
    #[serde(default, skip_serializing_if = "Option::is_none", borrow)]
    pub(super) module: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) module_address: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none", borrow)]
    pub(super) language: Option<Cow<'a, str>>,
}

/// The `language` of frames of Python; others have none.
const PYTHON: &str = "python";

impl<'a> From<&'a StackFrame> for FrameText<'a> {
    fn from(frame: &'a StackFrame) -> Self {
        Self {
            address: frame.address,
            function: frame.function.as_deref().map(Into::into),
            file: frame.file.as_deref().map(Into::into),
            line: frame.line,
            module: frame.module.as_deref().map(Into::into),
            module_address: frame.module_address,
            language: frame.is_python.then_some(PYTHON.into()),
        }
    }
}

impl From<FrameText<'_>> for StackFrame {
    fn from(text: FrameText<'_>) -> Self {
        Self {
            address: text.address,
            function: text.function.map(Into::into),
            file: text.file.map(Into::into),
            line: text.line,
            module: text.module.map(Into::into),
            module_address: text.module_address,
            is_python: text.language.as_deref() == Some(PYTHON),
        }
    }
}

pub(super) fn frames_text(stack: &Stack) -> String {
    let frames: Vec<_> = stack.frames.iter().map(FrameText::from).collect();
    serde_json::to_string(&frames).unwrap_or_default()
}

/// FNV-1a, which users can compute too.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
