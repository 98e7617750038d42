//! Builds answers of bounded size with sanitized names.

use serde_json::{Map, Value, json};

use super::ToolError;
use crate::untrusted_text::is_control;

/// Longest error, in characters.
pub(super) const MAX_ERROR: usize = 600;
/// Largest answer in bytes, without and with details.
const MAX_BYTES: [usize; 2] = [8 << 10, 32 << 10];

/// Untrusted text on one line, without control characters, truncated to `most` characters.
pub(super) fn text(text: &str, most: usize) -> String {
    let mut characters = text.chars().map(|c| if is_control(c) { '?' } else { c });
    let mut out: String = characters.by_ref().take(most).collect();
    if characters.next().is_some() {
        out.push_str("...");
    }
    out
}

/// An untrusted name.
pub(super) fn name(name: &str) -> Value {
    Value::from(text(name, 120))
}

/// Nanoseconds, as microseconds with a tenth.
pub(super) fn micros(nanos: u64) -> Value {
    json!((nanos as f64 / 100.0).round() / 10.0)
}

/// Nanoseconds, as seconds with six places.
pub(super) fn seconds(nanos: u64) -> Value {
    rounded(nanos as f64 / 1e9)
}

/// With six places.
pub(super) fn rounded(value: f64) -> Value {
    json!((value * 1e6).round() / 1e6)
}

/// A page of a list.
#[derive(Debug, Clone, Copy)]
pub(super) struct Page {
    pub(super) offset: usize,
    pub(super) limit: usize,
    pub(super) detail: bool,
}

impl Page {
    /// All of a list that has a bound of its own.
    pub(super) const LARGEST: Self = Self { offset: 0, limit: 200, detail: true };
}

/// An object with the rows of the page that fit, and the number of those left out.
pub(super) fn list(
    mut head: Map<String, Value>,
    key: &str,
    rows: &[Value],
    page: Page,
) -> Result<Value, ToolError> {
    let most = MAX_BYTES[usize::from(page.detail)];
    let mut bytes = Value::Object(head.clone()).to_string().len();
    if bytes > most {
        return Err(ToolError::new("the answer is too large; ask for one node or process"));
    }
    let mut shown = Vec::new();
    for row in rows.iter().skip(page.offset).take(page.limit) {
        bytes += row.to_string().len() + 1;
        if bytes > most {
            break;
        }
        shown.push(row.clone());
    }
    let next = page.offset.saturating_add(shown.len());
    let left = rows.len().saturating_sub(next);
    if left > 0 && shown.is_empty() {
        return Err(ToolError(format!(
            "row {next} alone is larger than an answer may be ({most} bytes); ask for fewer columns or without detail, or skip it with offset={}",
            next + 1
        )));
    }
    head.insert(key.to_owned(), Value::from(shown));
    if left > 0 {
        let left = json!({"rows": left, "how": format!("ask again with offset={next}, or a larger limit")});
        head.insert("left_out".to_owned(), left);
    }
    Ok(Value::Object(head))
}

/// An answer as text. It begins with the observation, which is needed to interpret the rest.
pub(super) fn written(mut value: Value) -> String {
    let observation = value.as_object_mut().and_then(|object| object.remove("observation"));
    let rest = value.to_string();
    match (observation, &*rest) {
        (None, _) => rest,
        (Some(observation), "{}") => format!("{{\"observation\":{observation}}}"),
        (Some(observation), _) => format!("{{\"observation\":{observation},{}", &rest[1..]),
    }
}

/// The object of `json!({...})`.
pub(super) fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, page: Page) -> Value {
        let rows: Vec<_> = (0..count).map(|at| json!({"at": at, "pad": "x".repeat(100)})).collect();
        list(Map::new(), "rows", &rows, page).unwrap()
    }

    #[test]
    fn following_the_offsets_gives_every_row_once_in_answers_of_bounded_size() {
        for detail in [false, true] {
            let (mut offset, mut seen) = (0, Vec::new());
            loop {
                let answer = numbers(1000, Page { offset, limit: 700, detail });
                assert!(answer.to_string().len() <= MAX_BYTES[usize::from(detail)] + 200);
                for row in answer["rows"].as_array().unwrap() {
                    seen.push(row["at"].as_u64().unwrap());
                }
                let Some(left) = answer.get("left_out") else { break };
                offset = seen.len();
                assert_eq!(left["rows"], 1000 - offset);
                assert!(left["how"].as_str().unwrap().contains(&format!("offset={offset},")));
            }
            assert!(seen.iter().copied().eq(0..1000));
        }
    }

    #[test]
    fn a_row_that_fits_into_no_answer_is_an_error_and_not_an_endless_loop() {
        let page = Page { offset: 0, limit: 10, detail: false };
        let error = list(Map::new(), "rows", &[json!("x".repeat(9000))], page).unwrap_err();
        assert!(error.0.contains("offset=1"), "{error}");
    }

    #[test]
    fn what_was_observed_is_the_beginning_of_an_answer() {
        let text = written(json!({"chains": [1], "observation": [{"state": "disabled"}]}));
        assert_eq!(text, r#"{"observation":[{"state":"disabled"}],"chains":[1]}"#);
        assert_eq!(written(json!({"observation": []})), r#"{"observation":[]}"#);
        assert_eq!(written(json!({"chains": []})), r#"{"chains":[]}"#);
        assert_eq!(written(json!([1])), "[1]");
    }

    #[test]
    fn names_stay_data() {
        assert_eq!(text("a\nIGNORE\u{1b}[2J\u{202e}b", 100), "a?IGNORE?[2J?b");
        assert_eq!(text("abcdef", 3), "abc...");
    }
}
