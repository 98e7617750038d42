//! The columns of the table: the same on a screen and in plain text.

use gpucause_engine::quantity::{bytes, duration, percent, rate, ratio, time};

use super::model::Row;
use crate::time_shares::Part;

/// A column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Column {
    Pid,
    Comm,
    Rate,
    P50,
    P99,
    Spread,
    Lost,
    Bar,
    Memory,
    Culprit,
    InFlight,
}

const ALL: [Column; 11] = [
    Column::Pid,
    Column::Comm,
    Column::Rate,
    Column::P50,
    Column::P99,
    Column::Spread,
    Column::Lost,
    Column::Bar,
    Column::Culprit,
    Column::Memory,
    Column::InFlight,
];
/// Columns that are left out on a narrow terminal, in this order.
const DISPENSABLE: [Column; 3] = [Column::InFlight, Column::Memory, Column::Culprit];
const MIN_BAR: usize = 16;
const MAX_BAR: usize = 60;
/// Columns that take the remaining width, in this order, and their largest widths. A culprit has its PID and unit.
const GROWING: [(Column, usize); 2] = [(Column::Culprit, 52), (Column::Bar, MAX_BAR)];

impl Column {
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Pid => "PID",
            Self::Comm => "COMM",
            Self::Rate => "LAUNCH/S",
            Self::P50 => "P50",
            Self::P99 => "P99",
            Self::Spread => "SPREAD",
            Self::Lost => "LOST",
            Self::Bar => "WHERE TIME WENT",
            Self::Memory => "GPU MEMORY",
            Self::Culprit => "LARGEST STALL",
            Self::InFlight => "OLDEST CALL",
        }
    }

    const fn min_width(self) -> usize {
        match self {
            Self::Pid => 7,
            Self::Comm => 15,
            Self::Rate | Self::P50 | Self::P99 => 8,
            Self::Spread => 6,
            Self::Lost => 5,
            Self::Bar => MIN_BAR,
            Self::Memory => 10,
            Self::Culprit => 32,
            Self::InFlight => 30,
        }
    }

    pub(super) const fn is_number(self) -> bool {
        !matches!(self, Self::Comm | Self::Bar | Self::Culprit | Self::InFlight)
    }

    /// The content of a cell; a bar as letters, `cells` wide.
    pub(super) fn text(self, row: &Row, cells: usize) -> String {
        match self {
            Self::Pid => row.numbers.pid.to_string(),
            Self::Comm => row.numbers.comm.clone(),
            Self::Rate => rate(row.numbers.launches_per_second),
            Self::P50 => time(row.numbers.p50_seconds),
            Self::P99 => time(row.numbers.p99_seconds),
            Self::Spread => ratio(row.numbers.spread),
            Self::Lost => percent(row.numbers.lost_share),
            Self::Bar => row.numbers.parts.cells(cells).into_iter().map(Part::letter).collect(),
            Self::Memory => memory(row),
            Self::Culprit => culprit(row),
            Self::InFlight => in_flight(row),
        }
    }

    /// The columns that fit into so many cells with one between them, and their widths.
    pub(super) fn that_fit(cells: usize) -> Vec<(Self, usize)> {
        let mut columns: Vec<(Self, usize)> =
            ALL.into_iter().map(|column| (column, column.min_width())).collect();
        let taken = |columns: &[(Self, usize)]| {
            columns.iter().map(|(_, width)| width + 1).sum::<usize>().saturating_sub(1)
        };
        for column in DISPENSABLE {
            if taken(&columns) <= cells {
                break;
            }
            columns.retain(|&(other, _)| other != column);
        }
        let mut free = cells.saturating_sub(taken(&columns));
        let over = taken(&columns).saturating_sub(cells);
        for (growing, most) in GROWING {
            if let Some((_, own)) = columns.iter_mut().find(|(column, _)| *column == growing) {
                let more = free.min(most.saturating_sub(*own));
                *own += more;
                free -= more;
            }
        }
        if let Some((_, bar)) = columns.iter_mut().find(|(column, _)| *column == Self::Bar) {
            *bar = bar.saturating_sub(over);
        }
        columns
    }
}

/// Returns the memory that was allocated under observation: earlier memory is not known.
pub(super) fn memory(row: &Row) -> String {
    format!("+{}", bytes(row.live_bytes as f64))
}

/// The largest stall and its share.
pub(super) fn culprit(row: &Row) -> String {
    match &row.culprit {
        Some((wait, share)) => format!("{} {}", percent(Some(*share)), wait.text()),
        None => "-".into(),
    }
}

/// The oldest call in flight, or that the process has exited.
pub(super) fn in_flight(row: &Row) -> String {
    match row.in_flight {
        _ if row.numbers.has_ended => "exited".into(),
        Some((op, age)) => format!("{} {op}", duration(Some(age))),
        None => "-".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn width(columns: &[(Column, usize)]) -> usize {
        columns.iter().map(|(_, width)| width + 1).sum::<usize>() - 1
    }

    #[test]
    fn columns_fill_the_terminal_and_narrow_ones_lack_some() {
        let has = |cells, column| Column::that_fit(cells).iter().any(|&(c, _)| c == column);
        assert_eq!(width(&Column::that_fit(80)), 80);
        assert_eq!(width(&Column::that_fit(150)), 150);
        assert!(width(&Column::that_fit(400)) < 400, "a bar has a maximal length");
        assert!(has(160, Column::InFlight) && has(160, Column::Memory));
        assert!(!has(80, Column::Culprit) && has(80, Column::Bar));
        assert_eq!(width(&Column::that_fit(70)), 70, "the bar shrinks before others go");
    }
}
