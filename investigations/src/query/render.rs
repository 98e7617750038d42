//! An answer as text: a table for people, CSV and JSON for programs.

use std::fmt::Write as _;

use super::{Answer, Value};
use crate::explain::steers;

/// The widest that a column of a table is, in characters.
const WIDEST: usize = 60;

/// A table with aligned columns. Values are data, whatever they say: what steers a terminal is replaced, and what is long is
/// cut.
#[must_use]
pub fn table(answer: &Answer) -> String {
    let cells: Vec<Vec<String>> =
        std::iter::once(answer.columns.iter().map(|name| cell(name)).collect())
            .chain(
                answer.rows.iter().map(|row| row.iter().map(|value| cell(&text(value))).collect()),
            )
            .collect();
    let width = |column: usize| {
        cells
            .iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<_> = (0..answer.columns.len()).map(width).collect();
    let mut out = String::new();
    for (index, row) in cells.iter().enumerate() {
        let numbers = index.checked_sub(1).and_then(|index| answer.rows.get(index));
        let mut line = String::new();
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            let is_number = numbers
                .and_then(|row| row.get(column))
                .is_some_and(|value| matches!(value, Value::Integer(_) | Value::Real(_)));
            // Writing to a String cannot fail.
            let _ = if is_number {
                write!(line, "{cell:>width$}  ")
            } else {
                write!(line, "{cell:<width$}  ")
            };
        }
        out.push_str(line.trim_end());
        out.push('\n');
        if index == 0 {
            let rules: Vec<_> = widths.iter().map(|&width| "-".repeat(width)).collect();
            out.push_str(&rules.join("  "));
            out.push('\n');
        }
    }
    out
}

/// Comma-separated values, as RFC 4180 writes them.
#[must_use]
pub fn csv(answer: &Answer) -> String {
    let mut out = String::new();
    let names = answer.columns.iter().map(|name| quoted(name)).collect::<Vec<_>>();
    let rows = answer
        .rows
        .iter()
        .map(|row| row.iter().map(|value| quoted(&text(value))).collect::<Vec<_>>());
    for row in std::iter::once(names).chain(rows) {
        out.push_str(&row.join(","));
        out.push_str("\r\n");
    }
    out
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Integer(number) => number.to_string(),
        Value::Real(number) => number.to_string(),
        Value::Text(text) => text.clone(),
        Value::Bytes(hex) => format!("x'{hex}'"),
    }
}

fn cell(text: &str) -> String {
    let mut cell: String =
        text.chars().take(WIDEST).map(|c| if steers(c) { '?' } else { c }).collect();
    if text.chars().nth(WIDEST).is_some() {
        cell.push_str("...");
    }
    cell
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
