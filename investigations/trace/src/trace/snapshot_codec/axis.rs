//! The lists of labels of a stored snapshot, and the value of each position here.

use gpucause_abi::op::{Api, CopyKind, OPS, OpId};
use gpucause_abi::record::{MAX_OPS, SelfCounter};
use gpucause_abi::state::{
    BlockOperation, Fault, LockKind, Phase, Reason, Relation, Role, State, Switch,
};

use super::wire::{Reader, Writer};
use super::{Result, SnapshotError};

/// Values by position in one list; `None` stands for a label that is unknown here, in a list without `other`.
#[derive(Debug)]
pub(super) struct Axis<T>(Vec<Option<T>>);

impl<T> Default for Axis<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Copy> Axis<T> {
    /// Reads the labels in a list.
    fn read(from: Reader<'_>, tag: u32, known: impl Fn(&str) -> Option<T>) -> Result<Self> {
        from.texts(tag, known).map(Self)
    }

    /// Returns the value at a position; an error beyond the list.
    pub(super) fn at(&self, position: u64) -> Result<Option<T>> {
        let beyond = SnapshotError::Accounts("it has a number without a label");
        let own = usize::try_from(position).ok().and_then(|position| self.0.get(position));
        own.copied().ok_or(beyond)
    }

    /// How many positions there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// The values of this type go by their labels, since another gpucause may number them otherwise.
pub(super) trait Labelled: Copy + PartialEq + 'static {
    /// Its number here, in written snapshots and in array cells.
    fn position(self) -> usize;

    /// The list of a snapshot.
    fn axis(axes: &Axes) -> &Axis<Self>;
}

/// Declares the lists: the tag of each among the labels, its type, all values in the order of their numbers, and what stands
/// for unknown ones.
macro_rules! axes {
    ($($tag:literal $list:ident: $name:ident, $all:expr, $other:expr;)+) => {
        /// All lists of a snapshot that is read.
        #[derive(Debug, Default)]
        pub(super) struct Axes {
            pub(super) ops: Axis<OpId>,
            $($list: Axis<$name>,)+
        }

        impl Axes {
            pub(super) fn read(labels: Reader<'_>) -> Result<Self> {
                Ok(Self {
                    ops: Axis::read(labels, OPS_TAG, |label| Some(op_of(label)))?,
                    $($list: Axis::read(labels, $tag, |label| {
                        $all.find(|known: &$name| known.label() == label).or($other)
                    })?,)+
                })
            }
        }

        impl OpList {
            /// Writes all lists, once the accounts are written.
            pub(super) fn write_labels(self, to: &mut Writer) {
                for op in self.ids {
                    let label = match op.op() {
                        Some(op) => format!("{} {}", op.api.label(), op.name),
                        None => op.0.to_string(),
                    };
                    to.bytes(OPS_TAG, label.as_bytes());
                }
                $($all.for_each(|each: $name| to.bytes($tag, each.label().as_bytes()));)+
            }
        }

        $(impl Labelled for $name {
            fn position(self) -> usize {
                $all.position(|each: $name| each == self).unwrap_or_default()
            }

            fn axis(axes: &Axes) -> &Axis<Self> {
                &axes.$list
            }
        })+
    };
}

const OPS_TAG: u32 = 1;

axes! {
    2 counters: SelfCounter, SelfCounter::ALL.iter().copied(), None;
    3 copies: CopyKind, CopyKind::ALL.iter().copied(), None;
    4 reasons: Reason, Reason::ALL.iter().copied(), Some(Reason::Other);
    5 phases: Phase, Phase::ALL.iter().copied(), Some(Phase::Other);
    6 states: State, State::all(), Some(State::Off(Reason::Other));
    7 roles: Role, Role::ALL.iter().copied(), None;
    8 switches: Switch, Switch::ALL.iter().copied(), None;
    9 relations: Relation, Relation::ALL.iter().copied(), Some(Relation::Other);
    10 faults: Fault, Fault::ALL.iter().copied(), None;
    11 block_operations: BlockOperation, BlockOperation::ALL.iter().copied(), Some(BlockOperation::Other);
    12 locks: LockKind, LockKind::ALL.iter().copied(), None;
}

/// Ops by their position in the snapshot that is written.
#[derive(Debug, Default)]
pub(super) struct OpList {
    ids: Vec<OpId>,
}

impl OpList {
    pub(super) fn position(&mut self, op: OpId) -> u32 {
        let known = self.ids.iter().position(|&known| known == op);
        let position = known.unwrap_or_else(|| {
            self.ids.push(op);
            self.ids.len() - 1
        });
        position as u32
    }
}

/// The op of this label. A label that this table lacks gets a number beyond it, the same in every snapshot.
fn op_of(label: &str) -> OpId {
    let (api, name) = label.split_once(' ').unwrap_or_default();
    let api = Api::ALL.iter().find(|known| known.label() == api);
    let known = OPS.iter().position(|op| Some(&op.api) == api && op.name == name);
    let known = known.or_else(|| label.parse::<u16>().ok().map(usize::from));
    let beyond = || {
        let sum =
            label.bytes().fold(0usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        MAX_OPS + sum % (usize::from(u16::MAX) - MAX_OPS)
    };
    let number = known.unwrap_or_else(beyond);
    OpId(u16::try_from(number).unwrap_or(u16::MAX))
}
