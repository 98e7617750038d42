//! Headers of requests, such as a token: from a file, so that no secret is on the command line or in the configuration.

use std::path::Path;

use gpucause_input::text_file;
use hyper::header::{
    CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName,
    HeaderValue, TRANSFER_ENCODING,
};

/// Headers that a file cannot set: they are about the request itself.
const OWN: [HeaderName; 6] =
    [CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING];

/// The file cannot be used. Its content is in no message.
#[derive(Debug, thiserror::Error)]
pub enum HeadersError {
    /// It cannot be read.
    #[error("cannot read the headers in {path}: {1}", path = .0.display())]
    Unreadable(std::path::PathBuf, #[source] std::io::Error),
    /// A line is none.
    #[error("line {1} of {path} is no header - write NAME: VALUE, such as Authorization: Bearer TOKEN; the length, type and host of a request cannot be set", path = .0.display())]
    Line(std::path::PathBuf, usize),
}

/// The headers in a file: one a line, as `NAME: VALUE`. Empty lines and those that begin with `#` are ignored.
pub(super) fn read(path: &Path) -> Result<HeaderMap, HeadersError> {
    let text = text_file::read(path);
    let text = text.map_err(|error| HeadersError::Unreadable(path.to_owned(), error))?;
    parse(&text).map_err(|line| HeadersError::Line(path.to_owned(), line))
}

/// The number of the first wrong line is the error.
pub(super) fn parse(text: &str) -> Result<HeaderMap, usize> {
    let mut headers = HeaderMap::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = header(line).ok_or(index + 1)?;
        headers.append(name, value);
    }
    Ok(headers)
}

fn header(line: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = line.split_once(':')?;
    let name: HeaderName = name.trim_end().parse().ok()?;
    let mut value: HeaderValue = value.trim().parse().ok()?;
    value.set_sensitive(true);
    (!OWN.contains(&name)).then_some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_header_and_no_secret_is_shown() {
        let headers = parse("# of the tenant\n\nAuthorization: Bearer a:b\nx-scope-orgid:ml\n");
        let headers = headers.unwrap();
        assert_eq!(headers["authorization"], "Bearer a:b");
        assert_eq!(headers["x-scope-orgid"], "ml");
        assert!(!format!("{headers:?}").contains("Bearer"));
    }

    #[test]
    fn a_wrong_line_is_named_by_its_number() {
        for wrong in ["no header", ": x", "a b: x", "x: \u{7}", "Content-Length: 3", "host: other"]
        {
            assert_eq!(parse(&format!("a: b\n{wrong}")).unwrap_err(), 2, "{wrong}");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "secret").unwrap();
        let error = read(file.path()).unwrap_err().to_string();
        assert!(error.contains("line 1 of") && !error.contains("secret"), "{error}");
    }
}
