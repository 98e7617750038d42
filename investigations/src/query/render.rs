//! Renders an answer as a table, CSV, TSV or lines of JSON.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::{Answer, Value};
use crate::untrusted_text::is_control;

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

/// Comma-separated values as of RFC 4180. Spreadsheets run text that begins like a formula: it gets an apostrophe, by which they take
/// it as text.
pub fn csv(answer: &Answer) -> String {
    let mut out = String::new();
    let names = answer.columns.iter().map(|name| quoted(&no_formula(name))).collect::<Vec<_>>();
    let cell = |value: &Value| match value {
        Value::Text(text) => quoted(&no_formula(text)),
        value => quoted(&text(value)),
    };
    let rows = answer.rows.iter().map(|row| row.iter().map(cell).collect::<Vec<_>>());
    for row in std::iter::once(names).chain(rows) {
        out.push_str(&row.join(","));
        out.push_str("\r\n");
    }
    out
}

/// Tab-separated values, a row a line: backslash, tab and line ends in values are `\\`, `\t`, `\n` and `\r`, and NULL is `\N`, as
/// `COPY` of PostgreSQL and ClickHouse's `TabSeparated` have them.
pub fn tsv(answer: &Answer) -> String {
    let mut out = String::new();
    let names = answer.columns.iter().map(|name| escaped(name)).collect::<Vec<_>>();
    let cell = |value: &Value| match value {
        Value::Null => "\\N".to_owned(),
        value => escaped(&text(value)),
    };
    let rows = answer.rows.iter().map(|row| row.iter().map(cell).collect::<Vec<_>>());
    for row in std::iter::once(names).chain(rows) {
        out.push_str(&row.join("\t"));
        out.push('\n');
    }
    out
}

/// A JSON object a line, with the columns as keys; a name that occurs again gets its position, such as `count_2`.
pub fn jsonl(answer: &Answer) -> String {
    let mut names: Vec<String> = Vec::with_capacity(answer.columns.len());
    for (column, position) in answer.columns.iter().zip(1..) {
        let mut name = column.clone();
        while names.contains(&name) {
            name = format!("{name}_{position}");
        }
        names.push(name);
    }
    let names: Vec<_> = names.iter().map(|name| serde_json::Value::from(&**name)).collect();
    let mut out = String::new();
    for row in &answer.rows {
        let fields = names.iter().zip(row).map(|(name, value)| {
            // Every value has a form in JSON.
            format!("{name}:{}", serde_json::to_string(value).unwrap_or_else(|_| "null".into()))
        });
        out.push_str(&format!("{{{}}}\n", fields.collect::<Vec<_>>().join(",")));
    }
    out
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\t', "\\t").replace('\n', "\\n").replace('\r', "\\r")
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

fn no_formula(text: &str) -> Cow<'_, str> {
    if text.starts_with(['=', '+', '-', '@', '\t', '\r']) {
        Cow::Owned(format!("'{text}"))
    } else {
        Cow::Borrowed(text)
    }
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
