//! Bearer tokens.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use hyper::http::header::InvalidHeaderValue;
use rustls::crypto::ring;

/// Minimum length in characters.
const LEAST: usize = 16;
/// Random bytes of a generated token.
const RANDOM_BYTES: usize = 32;
/// Bytes read of a token file.
const MAX_FILE: u64 = 4096;

/// A bearer token. `Debug` does not print it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// Text that is not a token.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a token has at least {LEAST} visible ASCII characters - `openssl rand -hex 32` makes one")]
pub struct TokenError;

impl Token {
    /// The first line of a text.
    ///
    /// # Errors
    /// When it is too short, or has other than visible ASCII characters.
    pub fn of(text: &str) -> Result<Self, TokenError> {
        let token = text.lines().next().unwrap_or_default().trim();
        let fits = token.len() >= LEAST && token.bytes().all(|byte| byte.is_ascii_graphic());
        if fits { Ok(Self(token.to_owned())) } else { Err(TokenError) }
    }

    /// The first line of a regular file. Symbolic links are refused.
    ///
    /// # Errors
    /// When the file cannot be read, or its first line is not a token.
    pub fn read(path: &Path) -> io::Result<Self> {
        if !fs::symlink_metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let mut text = String::new();
        File::open(path)?.take(MAX_FILE).read_to_string(&mut text)?;
        Self::of(&text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// A new random token.
    ///
    /// # Errors
    /// When the kernel has no random numbers.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; RANDOM_BYTES];
        let random = ring::default_provider().secure_random;
        random
            .fill(&mut bytes)
            .map_err(|_| io::Error::other("the system has no random numbers"))?;
        Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// Its text. Secret.
    pub fn secret(&self) -> &str {
        &self.0
    }

    /// Returns true if the headers carry this token. Compares in constant time.
    pub fn is_in(&self, headers: &HeaderMap) -> bool {
        let sent = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
        let Some((scheme, sent)) = sent.split_at_checked(7) else { return false };
        scheme.eq_ignore_ascii_case(b"Bearer ") && self.is(sent)
    }

    /// Returns true if this is the token's text. Compares in constant time.
    pub fn is(&self, sent: &[u8]) -> bool {
        if sent.len() != self.0.len() {
            return false;
        }
        let differ = sent.iter().zip(self.0.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
        std::hint::black_box(differ) == 0
    }

    pub(crate) fn header(&self) -> Result<HeaderValue, InvalidHeaderValue> {
        let mut value = HeaderValue::try_from(format!("Bearer {}", self.0))?;
        value.set_sensitive(true);
        Ok(value)
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_long_and_sent_whole() {
        assert_eq!(Token::of("short").map(|_| ()), Err(TokenError));
        let token = Token::of("0123456789abcdef\nmore").unwrap();
        let matches = |text: &str| {
            let value = HeaderValue::from_str(text).unwrap();
            token.is_in(&HeaderMap::from_iter([(AUTHORIZATION, value)]))
        };
        assert!(matches("Bearer 0123456789abcdef") && matches("bearer 0123456789abcdef"));
        for wrong in [
            "",
            "Bearer ",
            "Bearer 0123456789abcdeX",
            "Bearer 0123456789abcdef0",
            "Basic 0123456789abcdef",
        ] {
            assert!(!matches(wrong), "{wrong}");
        }
        assert!(!format!("{token:?}").contains("0123"));
    }

    #[test]
    fn a_token_is_read_from_its_own_file_and_through_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("token"), folder.path().join("link"));
        let token = Token::random().unwrap();
        assert_ne!(token, Token::random().unwrap());
        std::fs::write(&file, format!("{}\n", token.secret())).unwrap();
        assert_eq!(Token::read(&file).unwrap(), token);
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(Token::read(&link).is_err());
        std::fs::write(&file, "short\n").unwrap();
        assert_eq!(Token::read(&file).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
