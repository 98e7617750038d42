//! Tokens of the servers of this host, in files that only their owner and root can read. Programs of this host send them; requests
//! that a proxy forwards for others do not have them.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use gpucause_investigations::http::{Address, Token};

/// For servers of root, and the service, whose unit has `RuntimeDirectory=gpucause`.
const SYSTEM: &str = "/run/gpucause";
/// The folder in a user's runtime directory.
const OF_USER: &str = "gpucause";

/// A token in a file for each port of a server. The files are removed on drop.
#[derive(Debug)]
pub struct TokenFile {
    token: Token,
    paths: Vec<PathBuf>,
}

/// Why there is no file.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// The kernel has no random numbers.
    #[error("cannot create a token: {0}")]
    Random(io::Error),
    /// The file cannot be written.
    #[error("cannot write the token file {path}: {source}", path = .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

impl TokenFileError {
    /// The folder that cannot be written to.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        match self {
            Self::Random(_) => None,
            Self::Write { path, .. } => path.parent(),
        }
    }
}

impl TokenFile {
    /// A new token of a server with these ports, in the first folder that can be written to.
    ///
    /// # Errors
    /// When there is none.
    pub fn create(ports: &BTreeSet<u16>) -> Result<Self, TokenFileError> {
        let mut failure = None;
        for folder in folders_to_write() {
            match Self::create_in(&folder, ports) {
                Ok(file) => return Ok(file),
                // The first error names the preferred folder.
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        Err(failure.unwrap_or_else(|| TokenFileError::Random(ErrorKind::NotFound.into())))
    }

    /// The same in this folder, which is created if it is missing.
    ///
    /// # Errors
    /// When it cannot be written to.
    pub fn create_in(folder: &Path, ports: &BTreeSet<u16>) -> Result<Self, TokenFileError> {
        let token = Token::random().map_err(TokenFileError::Random)?;
        let mut created = Self { token, paths: Vec::new() };
        for port in ports {
            let path = path_in(folder, *port);
            write(folder, &path, &created.token)
                .map_err(|source| TokenFileError::Write { path: path.clone(), source })?;
            created.paths.push(path);
        }
        Ok(created)
    }

    /// The token.
    #[must_use]
    pub const fn token(&self) -> &Token {
        &self.token
    }

    /// The file of the first port.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.paths.first().map(PathBuf::as_path)
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        // Another server may have taken the port and the file.
        let own = |path: &&PathBuf| Token::read(path).is_ok_and(|token| token == self.token);
        for path in self.paths.iter().filter(own) {
            if let Err(error) = fs::remove_file(path) {
                tracing::debug!(%error, path = %path.display(), "cannot remove the token file");
            }
        }
    }
}

/// Files that may have the token of the server at this address; none for another host.
#[must_use]
pub fn candidates(address: &Address) -> Vec<PathBuf> {
    let port = address.target().1;
    if !address.is_loopback() {
        return Vec::new();
    }
    let folders = of_service().into_iter().chain(usual());
    folders.map(|folder| path_in(&folder, port)).collect()
}

/// Folders to try in order: that of the service manager, or else the usual ones.
fn folders_to_write() -> Vec<PathBuf> {
    match of_service() {
        Some(folder) => vec![folder],
        None => usual(),
    }
}

/// The folder that the service manager has made for this service.
fn of_service() -> Option<PathBuf> {
    // systemd separates several by colons.
    let all = named("RUNTIME_DIRECTORY")?;
    Some(PathBuf::from(all.to_str()?.split(':').next()?))
}

fn usual() -> Vec<PathBuf> {
    let user = named("XDG_RUNTIME_DIR").map(|folder| PathBuf::from(folder).join(OF_USER));
    std::iter::once(SYSTEM.into()).chain(user).collect()
}

fn named(variable: &str) -> Option<OsString> {
    std::env::var_os(variable).filter(|value| !value.is_empty())
}

fn path_in(folder: &Path, port: u16) -> PathBuf {
    folder.join(format!("{port}.token"))
}

/// Atomic, and with a mode that excludes others from the start.
fn write(folder: &Path, path: &Path, token: &Token) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let new = path.with_extension("new");
    match fs::remove_file(&new) {
        // Left by a server that was killed.
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    writeln!(file, "{}", token.secret())?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_token_file_is_its_owners_alone_and_goes_with_its_server() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("gpucause");
        let file = TokenFile::create_in(&folder, &[9400, 9401].into()).unwrap();
        assert_eq!(mode(&folder), 0o700);
        for name in ["9400.token", "9401.token"] {
            assert_eq!(mode(&folder.join(name)), 0o600, "{name}");
            assert_eq!(&Token::read(&folder.join(name)).unwrap(), file.token());
        }
        assert_eq!(file.path(), Some(&*folder.join("9400.token")));
        drop(file);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    }

    #[test]
    fn a_restarted_server_has_another_token_which_the_old_one_leaves_in_place() {
        let folder = tempfile::tempdir().unwrap();
        let ports = [9400].into();
        let old = TokenFile::create_in(folder.path(), &ports).unwrap();
        // Of one that was killed while it wrote.
        fs::write(folder.path().join("9400.new"), "rest").unwrap();
        let new = TokenFile::create_in(folder.path(), &ports).unwrap();
        assert_ne!(old.token(), new.token());
        drop(old);
        let path = folder.path().join("9400.token");
        assert_eq!((&Token::read(&path).unwrap(), mode(&path)), (new.token(), 0o600));
    }

    #[test]
    fn a_folder_that_cannot_be_written_to_is_an_error_with_the_path() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = TokenFile::create_in(file.path(), &[9400].into()).unwrap_err();
        assert_eq!(error.folder(), Some(file.path()));
        let error = error.to_string();
        assert!(error.contains(file.path().to_str().unwrap()), "{error}");
    }

    #[test]
    fn no_token_is_sent_to_another_host() {
        let files = |url: &str| candidates(&Address::parse(url, [80, 443]).unwrap());
        assert!(files("http://gpu-1:9400").is_empty() && files("http://10.0.0.1:9400").is_empty());
        let here = files("http://localhost:9400");
        assert!(here.contains(&Path::new(SYSTEM).join("9400.token")), "{here:?}");
    }
}
