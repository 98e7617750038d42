//! Sentence templates. All numbers come from the evidence.

use crate::evidence::Evidence;
use crate::quantity::{digits, percent, rounded_bytes, rounded_time};

/// Renders a template. `{name}` stands for a name, `{number|form}` for a number of the evidence formatted as `seconds`,
/// `percent`, `count`, `times` or `bytes`, and `{number|one/many}` for the singular or plural word. A clause in `[` and `]`, or
/// the text between clauses, is left out when a number or name that it uses is missing.
pub fn render(template: &str, evidence: &Evidence, names: &[(&str, &str)]) -> String {
    let mut text = String::with_capacity(2 * template.len());
    let mut rest = template;
    while let Some(open) = rest.find('[') {
        let (before, from) = rest.split_at(open);
        text.push_str(&fill(before, evidence, names).unwrap_or_default());
        let end = from.find(']').unwrap_or(from.len());
        text.push_str(&fill(&from[1..end], evidence, names).unwrap_or_default());
        rest = from.get(end + 1..).unwrap_or_default();
    }
    text.push_str(&fill(rest, evidence, names).unwrap_or_default());
    text
}

fn fill(text: &str, evidence: &Evidence, names: &[(&str, &str)]) -> Option<String> {
    let mut filled = String::with_capacity(2 * text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        let (field, remainder) = after.split_once('}')?;
        match field.split_once('|') {
            Some((name, form)) => filled.push_str(&number(evidence.get(name)?, form)),
            None => filled.push_str(names.iter().find(|(name, _)| *name == field)?.1),
        }
        rest = remainder;
    }
    filled.push_str(rest);
    Some(filled)
}

/// A number with its unit, rounded.
pub(crate) fn number(value: f64, form: &str) -> String {
    match form {
        "percent" => percent(Some(value)),
        "times" => format!("{} times", digits(value)),
        "bytes" => rounded_bytes(value),
        "seconds" => rounded_time(value),
        _ => match form.split_once('/') {
            // The number that is printed is rounded, too.
            Some((one, many)) => if value.round() == 1.0 { one } else { many }.to_owned(),
            None => format!("{value:.0}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_unit() {
        for (form, text) in
            [("seconds", "12 us"), ("percent", "0.0 %"), ("times", "0.0 times"), ("bytes", "0 B")]
        {
            assert_eq!(number(0.0000123, form), text);
        }
    }

    #[test]
    fn a_word_agrees_with_its_number() {
        let text = |workers| {
            let evidence = Evidence::default().with("workers", workers);
            render("{workers|count} {workers|worker was/workers were} busy.", &evidence, &[])
        };
        assert_eq!(text(0.0), "0 workers were busy.");
        assert_eq!(text(1.0), "1 worker was busy.");
        assert_eq!(text(2.0), "2 workers were busy.");
    }

    #[test]
    fn a_clause_with_a_missing_number_is_left_out() {
        let evidence = Evidence::default().with("a_seconds", 1.5);
        let template = "{who} lost {a_seconds|seconds}[ and {b|count} calls][ in {c}].";
        assert_eq!(render(template, &evidence, &[("who", "x[y]")]), "x[y] lost 1.5 s.");
    }
}
