//! The user's choices, and how keys change them.

use std::cmp::Ordering;

use gpucause_abi::ProcId;

use super::model::Row;

/// The action of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Quit,
    Up,
    Down,
    First,
    Last,
    Sort,
    Pause,
    Help,
    Detail,
    /// Close what was opened last.
    Back,
}

/// The column by which rows are sorted, the largest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Sort {
    #[default]
    Lost,
    Rate,
    P99,
    Spread,
    Memory,
    /// The smallest first.
    Pid,
}

impl Sort {
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Rate => "launches",
            Self::P99 => "p99",
            Self::Spread => "spread",
            Self::Memory => "memory",
            Self::Pid => "pid",
        }
    }

    const fn next(self) -> Self {
        match self {
            Self::Lost => Self::Rate,
            Self::Rate => Self::P99,
            Self::P99 => Self::Spread,
            Self::Spread => Self::Memory,
            Self::Memory => Self::Pid,
            Self::Pid => Self::Lost,
        }
    }

    fn order(self, a: &Row, b: &Row) -> Ordering {
        let numbers = |number: fn(&Row) -> f64| number(b).total_cmp(&number(a));
        let order = match self {
            // By time and not by share: a process that made one call and ended lost little, however large a part of its own time.
            // Rounded, so that invisible differences do not reorder rows.
            Self::Lost => numbers(|row| (row.numbers.lost_seconds * 100.0).round()),
            Self::Rate => numbers(|row| row.numbers.launches_per_second),
            Self::P99 => numbers(|row| row.numbers.p99_seconds.unwrap_or(-1.0)),
            Self::Spread => numbers(|row| row.numbers.spread.unwrap_or(-1.0)),
            Self::Memory => b.live_bytes.cmp(&a.live_bytes),
            Self::Pid => Ordering::Equal,
        };
        order.then_with(|| (a.numbers.pid, a.id).cmp(&(b.numbers.pid, b.id)))
    }
}

/// The choices.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    selected: Option<ProcId>,
    pub(super) sort: Sort,
    pub(super) paused: bool,
    pub(super) help: bool,
    pub(super) detail: bool,
}

impl State {
    /// Sorts the rows by the chosen column.
    pub(super) fn arrange(&self, rows: &mut [Row]) {
        rows.sort_by(|a, b| self.sort.order(a, b));
    }

    /// The position of the selected process, or the first one when it has exited.
    pub(super) fn position(&self, rows: &[Row]) -> usize {
        rows.iter().position(|row| Some(row.id) == self.selected).unwrap_or(0)
    }

    /// Applies an action; false to quit.
    pub(super) fn apply(&mut self, action: Action, rows: &mut [Row]) -> bool {
        let at = self.position(rows);
        let last = rows.len().saturating_sub(1);
        match action {
            Action::Quit => return false,
            Action::Up => self.select(rows, at.saturating_sub(1)),
            Action::Down => self.select(rows, (at + 1).min(last)),
            Action::First => self.select(rows, 0),
            Action::Last => self.select(rows, last),
            Action::Sort => {
                // The selected process stays selected wherever it goes.
                self.select(rows, at);
                self.sort = self.sort.next();
                self.arrange(rows);
            }
            Action::Pause => self.paused = !self.paused,
            Action::Help => self.help = !self.help,
            Action::Detail => {
                self.select(rows, at);
                self.detail = !self.detail;
            }
            Action::Back if self.help => self.help = false,
            Action::Back => self.detail = false,
        }
        true
    }

    fn select(&mut self, rows: &[Row], at: usize) {
        self.selected = rows.get(at).map(|row| row.id);
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::rows;
    use super::*;

    fn pids(rows: &[Row]) -> Vec<u32> {
        rows.iter().map(|row| row.numbers.pid).collect()
    }

    #[test]
    fn the_process_that_loses_most_comes_first_and_sorting_goes_round() {
        let (mut rows, mut state) = (rows(), State::default());
        state.arrange(&mut rows);
        assert_eq!(pids(&rows), [4243, 4242]);
        let mut labels = Vec::new();
        for _ in 0..6 {
            labels.push(state.sort.label());
            assert!(state.apply(Action::Sort, &mut rows));
        }
        assert_eq!(labels, ["lost", "launches", "p99", "spread", "memory", "pid"]);
        assert_eq!(state.sort, Sort::Lost);
    }

    #[test]
    fn the_selection_stays_on_its_process_and_within_the_table() {
        let (mut rows, mut state) = (rows(), State::default());
        state.arrange(&mut rows);
        for (action, at) in
            [(Action::Up, 0), (Action::Down, 1), (Action::Down, 1), (Action::First, 0)]
        {
            state.apply(action, &mut rows);
            assert_eq!(state.position(&rows), at, "{action:?}");
        }
        state.apply(Action::Sort, &mut rows);
        assert_eq!(pids(&rows), [4242, 4243]);
        assert_eq!(state.position(&rows), 1);
        rows.truncate(1);
        assert_eq!(state.position(&rows), 0, "the process has gone");
        rows.clear();
        for action in [Action::Down, Action::Up, Action::Last, Action::Sort, Action::Detail] {
            assert!(state.apply(action, &mut rows));
        }
    }

    #[test]
    fn back_closes_the_help_before_the_details() {
        let (mut rows, mut state) = (rows(), State::default());
        state.apply(Action::Detail, &mut rows);
        state.apply(Action::Help, &mut rows);
        state.apply(Action::Back, &mut rows);
        assert!(!state.help && state.detail);
        state.apply(Action::Back, &mut rows);
        assert!(!state.detail);
        assert!(!state.apply(Action::Quit, &mut rows));
    }
}
