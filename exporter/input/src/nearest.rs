//! Suggestions for misspelt names.

/// The nearest of `known`, if at most a third of its letters differ.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = known.into_iter().map(|known| (distance(name, known), known));
    let (distance, known) = near.min_by_key(|&(distance, _)| distance)?;
    (distance * 3 <= known.len()).then_some(known)
}

/// The edit distance, ignoring case.
fn distance(a: &str, b: &str) -> usize {
    // Bounds the time for very long names.
    if a.len() > 2 * b.len() {
        return a.len();
    }
    let b: Vec<u8> = b.bytes().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let changed = diagonal + usize::from(!x.eq_ignore_ascii_case(y));
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_is_recognised_and_another_word_is_not() {
        let known = ["retention", "limits", "processes"];
        assert_eq!(nearest("retension", known), Some("retention"));
        assert_eq!(nearest("Limit", known), Some("limits"));
        assert_eq!(nearest("", known), None);
        assert_eq!(nearest("scrape", known), None);
        assert_eq!(nearest(&"x".repeat(10_000), known), None);
    }
}
