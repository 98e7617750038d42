//! Texts that others choose, such as names of processes, on a terminal.

/// Returns true if a character is invisible: controls, format characters, and tag characters, which assistants read.
pub fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{e0000}'..='\u{e0fff}')
}

/// Text on one line: every control character is replaced.
pub fn line(text: &str) -> String {
    text.chars().map(|c| if is_control(c) { '?' } else { c }).collect()
}
