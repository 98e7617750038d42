//! Logins: the user from the URL, the password from a file or the environment.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::Address;

/// Bytes read of a password file.
const MAX_BYTES: u64 = 4096;

/// User and password. Secret.
pub struct Login {
    pub(super) user: String,
    pub(super) password: String,
}

/// Why there is no login.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    /// The password file cannot be read.
    #[error("cannot read the password from {path}: {1}", path = .0.display())]
    Unreadable(PathBuf, #[source] io::Error),
    /// There is a user without a password.
    #[error("no password for {0} - {1}")]
    NoPassword(String, &'static str),
    /// There is a password without a user.
    #[error("there is a password but no user - name the user in the URL: https://USER@HOST:PORT")]
    Nobody,
}

impl Login {
    /// The address's user with the password of `file`, else `inherited` from the environment. `None` without a login. `hint` says where a password can be given.
    ///
    /// # Errors
    /// When user or password is missing, or the file cannot be read.
    pub fn of(
        address: &Address,
        file: Option<&Path>,
        inherited: Option<String>,
        hint: &'static str,
    ) -> Result<Option<Self>, LoginError> {
        let unreadable = |path: &Path, source| LoginError::Unreadable(path.into(), source);
        let password =
            file.map(|path| read(path).map_err(|source| unreadable(path, source))).transpose()?;
        let user = address.user().filter(|user| !user.is_empty());
        let Some(user) = user.map(str::to_owned) else {
            // A password in the environment may be meant for other nodes.
            return if password.is_some() { Err(LoginError::Nobody) } else { Ok(None) };
        };
        match password.or(inherited) {
            Some(password) => Ok(Some(Self { user, password })),
            None => Err(LoginError::NoPassword(user, hint)),
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
    fn a_password_comes_from_the_file_then_the_environment() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        std::fs::write(&file, "of the file\nmore\n").unwrap();
        let got = |text: &str| Ok(Some(("me".to_owned(), text.to_owned())));
        assert_eq!(of("http://me@h", Some(&file), Some("env")), got("of the file"));
        assert_eq!(of("http://me@h", None, Some("env")), got("env"));
        assert_eq!(of("http://h", None, Some("env")), Ok(None));
    }

    #[test]
    fn errors_name_what_is_missing() {
        assert!(of("http://me@h", None, None).unwrap_err().contains("no password for me - hint"));
        let gone = of("http://me@h", Some(Path::new("/nonexistent/p")), None).unwrap_err();
        assert!(gone.contains("/nonexistent/p"), "{gone}");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        std::fs::write(&file, "x").unwrap();
        assert!(of("http://h", Some(&file), None).unwrap_err().contains("https://USER@HOST"));
    }
}
