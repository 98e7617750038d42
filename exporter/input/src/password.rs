//! Passwords in what users write, which no message shows.

use std::borrow::Cow;

/// A text for messages, without the user and password of a URL in it, if it may have a password.
pub fn without_password(text: &str) -> Cow<'_, str> {
    let url = text.strip_prefix("prometheus:").unwrap_or(text);
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    // Anything else before :// may be of the password.
    let rest = rest.unwrap_or(text);
    let scheme = &text[..text.len() - rest.len()];
    match rest.rsplit_once('@') {
        Some((login, host)) if login.contains(':') => Cow::Owned(format!("{scheme}...@{host}")),
        _ => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_in_no_message() {
        for (text, shown) in [
            ("http://me:pw@h:1/x", "http://...@h:1/x"),
            ("prometheus:http://me:p/w@h", "prometheus:http://...@h"),
            ("me:p@w@h:9400", "...@h:9400"),
            ("http://me:p://w@h", "http://...@h"),
            ("me:p://w@h", "...@h"),
            ("prometheus:p/w@h", "...@h"),
            ("prometheus:https://me@h", "prometheus:https://me@h"),
            ("a,http://me:p,w@h", "...@h"),
            ("https://me@h:9400", "https://me@h:9400"),
            ("ftp://h", "ftp://h"),
            ("user@example.com", "user@example.com"),
        ] {
            assert_eq!(without_password(text), shown);
        }
    }
}
