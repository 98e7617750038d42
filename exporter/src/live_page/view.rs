//! The choices of a reader: the order of processes, the page of the table, and a part of a name.

use std::cmp::Ordering;
use std::fmt::Write as _;

use super::processes::ProcessRow;
use crate::collector::decoded;

/// Rows of a page of the table.
pub(crate) const ROWS: usize = 50;
/// Characters of the text to find.
const MAX_FIND: usize = 64;

/// A column that the table can be sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Sort {
    /// Seconds lost, the most first.
    #[default]
    Lost,
    Rate,
    P50,
    P99,
    Spread,
    Pid,
    Name,
}

impl Sort {
    const ALL: [(Self, &'static str); 7] = [
        (Self::Lost, "lost"),
        (Self::Rate, "rate"),
        (Self::P50, "p50"),
        (Self::P99, "p99"),
        (Self::Spread, "spread"),
        (Self::Pid, "pid"),
        (Self::Name, "name"),
    ];

    fn key(self) -> &'static str {
        Self::ALL.iter().find(|(own, _)| *own == self).map_or("lost", |(_, key)| key)
    }

    fn compare(self, a: &ProcessRow, b: &ProcessRow) -> Ordering {
        let largest = |value: fn(&ProcessRow) -> Option<f64>| {
            let value = |row| value(row).unwrap_or(-1.0);
            value(b).total_cmp(&value(a))
        };
        let order = match self {
            Self::Lost => largest(|row| Some(row.lost_seconds)),
            Self::Rate => largest(|row| Some(row.launches_per_second)),
            Self::P50 => largest(|row| row.p50_seconds),
            Self::P99 => largest(|row| row.p99_seconds),
            Self::Spread => largest(|row| row.spread),
            Self::Pid => Ordering::Equal,
            Self::Name => a.comm.cmp(&b.comm),
        };
        order.then(a.pid.cmp(&b.pid))
    }
}

/// The choice, which is in the query of the URL.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) sort: Sort,
    /// From 0.
    pub(crate) page: usize,
    /// A part of a name, or a PID.
    pub(crate) find: String,
}

impl View {
    /// Parses a query. Parts that it does not understand are left out: a link of another version still shows the page.
    pub(crate) fn of(query: &str) -> Self {
        let mut view = Self::default();
        for parameter in query.split('&') {
            let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let Ok(value) = decoded(value) else { continue };
            match key {
                "sort" => {
                    let named = Sort::ALL.iter().find(|(_, key)| *key == value);
                    view.sort = named.map_or(Sort::Lost, |(sort, _)| *sort);
                }
                "page" => view.page = value.parse::<usize>().unwrap_or(1).saturating_sub(1),
                "find" => view.find = value.trim().chars().take(MAX_FIND).collect(),
                _ => {}
            }
        }
        view
    }

    /// The link to this choice.
    pub(crate) fn href(&self) -> String {
        let mut href = format!("/?sort={}&page={}", self.sort.key(), self.page + 1);
        if !self.find.is_empty() {
            href.push_str("&find=");
            for byte in self.find.bytes() {
                match byte {
                    b if b.is_ascii_alphanumeric() => href.push(char::from(b)),
                    // Writing to a String cannot fail.
                    b => drop(write!(href, "%{b:02X}")),
                }
            }
        }
        href
    }

    /// The name of the order, for the form.
    pub(crate) fn sort_key(&self) -> &'static str {
        self.sort.key()
    }

    /// The rows that are chosen, in order: all of them, and those of the page.
    pub(crate) fn rows<'a>(&self, rows: &'a [ProcessRow]) -> Chosen<'a> {
        let wanted = self.find.to_lowercase();
        let has = |row: &&ProcessRow| {
            wanted.is_empty()
                || row.comm.to_lowercase().contains(&wanted)
                || row.pid.to_string() == wanted
        };
        let mut found: Vec<_> = rows.iter().filter(has).collect();
        found.sort_by(|a, b| self.sort.compare(a, b));
        let pages = found.len().div_ceil(ROWS).max(1);
        let page = self.page.min(pages - 1);
        let count = found.len();
        let shown = found.into_iter().skip(page * ROWS).take(ROWS).collect();
        Chosen { shown, count, page, pages }
    }
}

/// The rows of a page.
pub(crate) struct Chosen<'a> {
    pub(crate) shown: Vec<&'a ProcessRow>,
    /// On all pages.
    pub(crate) count: usize,
    /// From 0.
    pub(crate) page: usize,
    pub(crate) pages: usize,
}
