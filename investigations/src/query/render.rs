//! Renders an answer as a table or CSV.

use std::fmt::Write as _;

use super::{Answer, Value};
use crate::explain::is_control;

/// Largest width of a column, in characters.
const MAX_WIDTH: usize = 60;

/// A table with aligned columns. Values are untrusted: characters that control a terminal are replaced, and long values are
/// truncated.
pub fn table(answer: &Answer) -> String {
    let mut cells: Vec<Vec<(String, bool)>> =
        vec![answer.columns.iter().map(|name| (cell(name), false)).collect()];
    cells.extend(answer.rows.iter().map(|row| {
        let is_number = |value: &_| matches!(value, Value::Integer(_) | Value::Real(_));
        row.iter().map(|value| (cell(&text(value)), is_number(value))).collect()
    }));
    let width = |column: usize| {
        let widths = cells.iter().filter_map(|row| Some(row.get(column)?.0.chars().count()));
        widths.max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..answer.columns.len()).map(width).collect();
    let mut out = String::new();
    for (index, row) in cells.iter().enumerate() {
        let mut line = String::new();
        for ((cell, is_number), &width) in row.iter().zip(&widths) {
            // Writing to a String cannot fail.
            let _ = if *is_number {
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

/// Comma-separated values as of RFC 4180.
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
        text.chars().take(MAX_WIDTH).map(|c| if is_control(c) { '?' } else { c }).collect();
    if text.chars().nth(MAX_WIDTH).is_some() {
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
