//! Texts that fill a column of a terminal.

use ratatui::text::Span;

/// Cells of a terminal that the text takes.
pub(super) fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// The text in exactly so many cells, at the left or the right; one that is too long ends in `~`.
pub(super) fn fit(text: &str, cells: usize, right: bool) -> String {
    if width(text) <= cells {
        let blank = " ".repeat(cells - width(text));
        return if right { blank + text } else { format!("{text}{blank}") };
    }
    let mut fitted = String::new();
    for letter in text.chars() {
        let wider = format!("{fitted}{letter}");
        if width(&wider) >= cells {
            break;
        }
        fitted = wider;
    }
    let blank = " ".repeat(cells.saturating_sub(width(&fitted) + 1));
    if cells == 0 { String::new() } else { format!("{fitted}~{blank}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_fills_its_column_and_no_more() {
        assert_eq!(fit("ab", 4, false), "ab  ");
        assert_eq!(fit("ab", 4, true), "  ab");
        assert_eq!(fit("abcdef", 4, false), "abc~");
        // Each of these takes two cells.
        let wide = "\u{8a13}\u{7df4}\u{5668}";
        assert_eq!(fit(wide, 4, false), "\u{8a13}~ ");
        assert_eq!(width(&fit(wide, 5, true)), 5);
        assert_eq!(fit("a", 0, false), "");
    }
}
