//! Who logs in, and by which password: from the URL, a file, or the environment, which other users of the host cannot see.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::Address;

/// Bytes that the file of a password may have.
const MAX_BYTES: u64 = 4096;

/// A name and a password. Not to be shown.
pub struct Login {
    pub(super) user: String,
    pub(super) password: String,
}

/// Why nobody can log in.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    /// The file of the password.
    #[error("cannot read the password from {path}: {source}", path = .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
    /// It is said who, and not by which password.
    #[error("there is no password for {0}; {1}")]
    NoPassword(String, &'static str),
    /// There is a password, and it is not said whose.
    #[error(
        "the password is nobody's; write who logs in into the URL, as in https://USER@HOST:PORT"
    )]
    Nobody,
}

impl Login {
    /// What the address says, with the password of `file`, or else of the address, or else `inherited` from the environment.
    /// `None` when nobody is to log in. `hint` says where a password can be given.
    ///
    /// # Errors
    /// When one of both is missing, or the file cannot be read.
    pub fn of(
        address: &Address,
        file: Option<&Path>,
        inherited: Option<String>,
        hint: &'static str,
    ) -> Result<Option<Self>, LoginError> {
        let told = match file {
            Some(path) => Some(
                read(path)
                    .map_err(|source| LoginError::Unreadable { path: path.to_owned(), source })?,
            ),
            None => address.password().map(str::to_owned),
        };
        match (address.user().filter(|user| !user.is_empty()), told) {
            (Some(user), told) => match told.or(inherited) {
                Some(password) => Ok(Some(Self { user: user.to_owned(), password })),
                None => Err(LoginError::NoPassword(user.to_owned(), hint)),
            },
            (None, Some(_)) => Err(LoginError::Nobody),
            // One in the environment may be meant for other nodes.
            (None, None) => Ok(None),
        }
    }
}

/// The first line.
fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_BYTES).read_to_string(&mut text)?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(
        url: &str,
        file: Option<&Path>,
        inherited: Option<&str>,
    ) -> Result<Option<(String, String)>, String> {
        let address = Address::parse(url, [80, 443]).unwrap();
        let login = Login::of(&address, file, inherited.map(str::to_owned), "hint");
        login.map(|l| l.map(|l| (l.user, l.password))).map_err(|error| error.to_string())
    }

    #[test]
    fn a_password_comes_from_the_file_then_the_address_then_the_environment() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        std::fs::write(&file, "of the file\nmore\n").unwrap();
        let got = |text: &str| Ok(Some(("me".to_owned(), text.to_owned())));
        assert_eq!(of("http://me:url@h", Some(&file), Some("env")), got("of the file"));
        assert_eq!(of("http://me:url@h", None, Some("env")), got("url"));
        assert_eq!(of("http://me@h", None, Some("env")), got("env"));
        assert_eq!(of("http://h", None, Some("env")), Ok(None));
    }

    #[test]
    fn what_is_missing_is_told() {
        assert!(of("http://me@h", None, None).unwrap_err().contains("no password for me; hint"));
        let gone = of("http://me@h", Some(Path::new("/nonexistent/p")), None).unwrap_err();
        assert!(gone.contains("/nonexistent/p"), "{gone}");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        std::fs::write(&file, "x").unwrap();
        assert!(of("http://h", Some(&file), None).unwrap_err().contains("https://USER@HOST"));
    }
}
