//! Words of shell commands.

/// One shell word; `None` for what is unsafe in a command: an option, or text that displays as something else.
pub(crate) fn quoted(word: &str) -> Option<String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "@%+=:,./_-".contains(c);
    let shows = |c: char| c == ' ' || c.is_ascii_graphic();
    match word {
        "" => None,
        // Commands are printed between backticks.
        word if word.starts_with('-') || word.contains('`') || !word.chars().all(shows) => None,
        word if word.chars().all(is_plain) => Some(word.to_owned()),
        word => Some(format!("'{}'", word.replace('\'', r"'\''"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_is_quoted_or_left_out() {
        assert_eq!(quoted("fluent-bit.service").as_deref(), Some("fluent-bit.service"));
        assert_eq!(quoted("a b.service").as_deref(), Some("'a b.service'"));
        assert_eq!(quoted("$(reboot).service").as_deref(), Some("'$(reboot).service'"));
        assert_eq!(quoted("';reboot;'").as_deref(), Some(r"''\'';reboot;'\'''"));
        for word in ["", "-H.service", "`reboot`.service", "a\nb.service", "a\u{202e}b"] {
            assert_eq!(quoted(word), None, "{word:?}");
        }
    }
}
