//! The lists of labels of a look, and what each position in them is here.

use gpucause_abi::op::{Api, CopyKind, OPS, OpId};
use gpucause_abi::record::{MAX_OPS, SelfCounter};
use gpucause_abi::state::{BlockOperation, Fault, Phase, Reason, Relation, Role, State, Switch};

use super::message::Labels;

/// Ops by their position in the look that is being written.
#[derive(Debug, Default)]
pub(super) struct OpsTold {
    ids: Vec<OpId>,
}

impl OpsTold {
    pub(super) fn position(&mut self, op: OpId) -> u32 {
        let known = self.ids.iter().position(|&known| known == op);
        let position = known.unwrap_or_else(|| {
            self.ids.push(op);
            self.ids.len() - 1
        });
        position as u32
    }

    /// All lists, once the accounts are told.
    pub(super) fn labels(self) -> Labels {
        let ops = self.ids.into_iter().map(|id| match id.op() {
            Some(op) => format!("{} {}", op.api.label(), op.name),
            None => id.0.to_string(),
        });
        Labels {
            ops: ops.collect(),
            counters: labels(SelfCounter::ALL, SelfCounter::label),
            copies: labels(CopyKind::ALL, CopyKind::label),
            reasons: labels(Reason::ALL, Reason::label),
            phases: labels(Phase::ALL, Phase::label),
            states: State::all().map(|state| state.label().to_owned()).collect(),
            roles: labels(Role::ALL, Role::label),
            switches: labels(Switch::ALL, Switch::label),
            relations: labels(Relation::ALL, Relation::label),
            faults: labels(Fault::ALL, Fault::label),
            block_operations: labels(BlockOperation::ALL, BlockOperation::label),
        }
    }
}

fn labels<T: Copy>(all: &[T], label: impl Fn(T) -> &'static str) -> Vec<String> {
    all.iter().map(|&each| label(each).to_owned()).collect()
}

/// What the positions in one list are here; `None` for what is not known and has no `other`.
#[derive(Debug)]
pub(super) struct Axis<T>(Vec<Option<T>>);

impl<T: Copy> Axis<T> {
    fn of(told: &[String], all: &[T], label: impl Fn(T) -> &'static str, other: Option<T>) -> Self {
        let known = |told: &String| all.iter().copied().find(|&each| label(each) == told);
        Self(told.iter().map(|told| known(told).or(other)).collect())
    }

    /// What is at a position; an error beyond the list.
    pub(super) fn at(&self, position: u32) -> Result<Option<T>, super::LookError> {
        let beyond = super::LookError::Accounts("it has a number that none of its labels explains");
        self.0.get(position as usize).copied().ok_or(beyond)
    }

    /// How many positions there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// All lists of a look that is read.
#[derive(Debug)]
pub(super) struct Axes {
    pub(super) ops: Axis<OpId>,
    pub(super) counters: Axis<SelfCounter>,
    pub(super) copies: Axis<CopyKind>,
    pub(super) reasons: Axis<Reason>,
    pub(super) phases: Axis<Phase>,
    pub(super) states: Axis<State>,
    pub(super) roles: Axis<Role>,
    pub(super) switches: Axis<Switch>,
    pub(super) relations: Axis<Relation>,
    pub(super) faults: Axis<Fault>,
    pub(super) block_operations: Axis<BlockOperation>,
}

impl Axes {
    pub(super) fn of(labels: &Labels) -> Self {
        let states: Vec<_> = State::all().collect();
        let (other_state, other_reason) = (Some(State::Off(Reason::Other)), Some(Reason::Other));
        let other_block = Some(BlockOperation::Other);
        Self {
            ops: Axis(labels.ops.iter().map(|told| Some(op_of(told))).collect()),
            counters: Axis::of(&labels.counters, SelfCounter::ALL, SelfCounter::label, None),
            copies: Axis::of(&labels.copies, CopyKind::ALL, CopyKind::label, None),
            reasons: Axis::of(&labels.reasons, Reason::ALL, Reason::label, other_reason),
            phases: Axis::of(&labels.phases, Phase::ALL, Phase::label, Some(Phase::Other)),
            states: Axis::of(&labels.states, &states, State::label, other_state),
            roles: Axis::of(&labels.roles, Role::ALL, Role::label, None),
            switches: Axis::of(&labels.switches, Switch::ALL, Switch::label, None),
            relations: Axis::of(
                &labels.relations,
                Relation::ALL,
                Relation::label,
                Some(Relation::Other),
            ),
            faults: Axis::of(&labels.faults, Fault::ALL, Fault::label, None),
            block_operations: Axis::of(
                &labels.block_operations,
                BlockOperation::ALL,
                BlockOperation::label,
                other_block,
            ),
        }
    }
}

/// The op of this label. One that this table does not have gets a number beyond it, the same in every look.
fn op_of(told: &str) -> OpId {
    let (api, name) = told.split_once(' ').unwrap_or_default();
    let api = Api::ALL.iter().find(|known| known.label() == api);
    let known = OPS.iter().position(|op| Some(&op.api) == api && op.name == name);
    let known = known.or_else(|| told.parse::<u16>().ok().map(usize::from));
    let beyond = || {
        let sum =
            told.bytes().fold(0usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        MAX_OPS + sum % (usize::from(u16::MAX) - MAX_OPS)
    };
    let number = known.unwrap_or_else(beyond);
    OpId(u16::try_from(number).unwrap_or(u16::MAX))
}
