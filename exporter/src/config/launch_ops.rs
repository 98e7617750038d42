//! Ops by name.

use gpucause_abi::op::{LaunchOps, OPS, OpId, op_of_symbol};
use gpucause_input::nearest::nearest;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The ops that count as launches, as a list of names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpNames(pub LaunchOps);

struct OpName(OpId);

impl Serialize for OpNames {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().filter_map(OpId::op).map(|op| op.name))
    }
}

impl<'de> Deserialize<'de> for OpNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A list whose items are all commented out is null.
        let Some(names) = Option::<Vec<OpName>>::deserialize(deserializer)? else {
            return Ok(Self::default());
        };
        if names.is_empty() {
            let problem = "is empty, and must have at least one operation";
            return Err(serde::de::Error::custom(problem));
        }
        Ok(Self(names.into_iter().map(|name| name.0).collect()))
    }
}

impl<'de> Deserialize<'de> for OpName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let known = op_of_symbol(&text).filter(|id| id.op().is_some_and(|op| op.name == text));
        known.map(Self).ok_or_else(|| {
            let near = op_of_symbol(&text).and_then(OpId::op).map(|op| op.name);
            let near = near.or_else(|| nearest(&text, OPS.iter().map(|op| op.name)));
            let near = near.map(|name| format!("; did you mean {name}?")).unwrap_or_default();
            let form = "the name of an operation as in the op label, such as cudaLaunchKernel";
            serde::de::Error::custom(format!("is {text:?}, and must be {form}{near}"))
        })
    }
}
