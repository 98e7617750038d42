//! Tokens of the servers of this host, in files that only their owner and root can read. Programs of this host send them; requests
//! that a proxy forwards for others do not have them.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::client::Address;
use crate::token::Token;

/// For servers of root, and the service, whose unit has `RuntimeDirectory=gpucause`.
const SYSTEM: &str = "/run/gpucause";
/// The folder in a user's runtime directory.
const OF_USER: &str = "gpucause";

/// A token in a file for each port of a server, `PORT.token`; where a live server at another address of the port has that, in
/// `ADDRESS:PORT.token`. The files are locked while the server lives, and removed on drop.
#[derive(Debug)]
pub struct TokenFile {
    token: Token,
    files: Vec<(PathBuf, File)>,
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
    /// A new token of a server at these addresses, in the first folder that can be written to.
    ///
    /// # Errors
    /// When there is none.
    pub fn create(addresses: &BTreeSet<SocketAddr>) -> Result<Self, TokenFileError> {
        let mut failure = None;
        for folder in folders_to_write() {
            match Self::create_in(&folder, addresses) {
                Ok(file) => return Ok(file),
                // The first error names the preferred folder.
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        Err(failure.unwrap_or_else(|| TokenFileError::Random(ErrorKind::NotFound.into())))
    }

    /// Creates a token as [`create`](Self::create) does, but in this folder, which is created if it is missing.
    ///
    /// # Errors
    /// When it cannot be written to.
    pub fn create_in(
        folder: &Path,
        addresses: &BTreeSet<SocketAddr>,
    ) -> Result<Self, TokenFileError> {
        let token = Token::random().map_err(TokenFileError::Random)?;
        let mut created = Self { token, files: Vec::new() };
        let ports: BTreeSet<u16> = addresses.iter().map(SocketAddr::port).collect();
        for port in ports {
            remove_stale(folder, port);
            let common = path_in(folder, port);
            let paths: Vec<_> = if is_of_live_server(&common) {
                let own = addresses.iter().filter(|address| address.port() == port);
                own.map(|address| path_of(folder, *address)).collect()
            } else {
                vec![common]
            };
            for path in paths {
                let file = write(folder, &path, &created.token)
                    .map_err(|source| TokenFileError::Write { path: path.clone(), source })?;
                created.files.push((path, file));
            }
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
        self.files.first().map(|(path, _)| path.as_path())
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        // A server of an older version, which locks nothing, may have taken the file.
        let own = |path: &&PathBuf| Token::read(path).is_ok_and(|token| token == self.token);
        for path in self.files.iter().map(|(path, _)| path).filter(own) {
            if let Err(error) = fs::remove_file(path) {
                tracing::debug!(%error, path = %path.display(), "cannot remove the token file");
            }
        }
    }
}

/// Files that may have the token of the server at this address, that of the address alone first; none for another host.
#[must_use]
pub fn candidates(address: &Address) -> Vec<PathBuf> {
    let (host, port) = address.target();
    if !address.is_loopback() {
        return Vec::new();
    }
    let mut addresses: Vec<IpAddr> = match host.parse::<IpAddr>() {
        Ok(address) => vec![address.to_canonical()],
        Err(_) => vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
    };
    addresses.extend([IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()]);
    let in_folder = |folder: PathBuf| {
        let own = addresses.iter().map(|address| path_of(&folder, (*address, port).into()));
        own.chain([path_in(&folder, port)]).collect::<Vec<_>>()
    };
    of_service().into_iter().chain(usual()).flat_map(in_folder).collect()
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

fn path_of(folder: &Path, address: SocketAddr) -> PathBuf {
    folder.join(format!("{address}.token"))
}

/// Returns true if a server that lives has this file.
fn is_of_live_server(path: &Path) -> bool {
    let locked = File::open(path).map(|file| file.try_lock_shared());
    matches!(locked, Ok(Err(TryLockError::WouldBlock)))
}

/// Removes files of addresses of this port whose servers were killed: clients would send those tokens.
fn remove_stale(folder: &Path, port: u16) {
    let end = format!(":{port}.token");
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_of_port = |path: &PathBuf| path.to_str().is_some_and(|path| path.ends_with(&end));
    for path in files.map(|entry| entry.path()).filter(is_of_port) {
        if !is_of_live_server(&path) {
            // Where it cannot be removed, it cannot be replaced either, which is an error.
            let _ = fs::remove_file(path);
        }
    }
}

/// Atomic, locked, and with a mode that excludes others from the start.
fn write(folder: &Path, path: &Path, token: &Token) -> io::Result<File> {
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
    file.lock()?;
    writeln!(file, "{}", token.secret())?;
    fs::rename(&new, path)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    fn at(addresses: &[&str]) -> BTreeSet<SocketAddr> {
        addresses.iter().map(|address| address.parse().unwrap()).collect()
    }

    fn names_in(folder: &Path) -> Vec<String> {
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn a_token_file_is_its_owners_alone_and_goes_with_its_server() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("gpucause");
        let file =
            TokenFile::create_in(&folder, &at(&["127.0.0.1:9400", "[::1]:9400", "127.0.0.1:9401"]))
                .unwrap();
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
    fn servers_of_one_port_have_a_file_each_until_they_end() {
        let folder = tempfile::tempdir().unwrap();
        let create = |address| TokenFile::create_in(folder.path(), &at(&[address])).unwrap();
        // The files are of a server that was killed while it wrote, and of one at another address.
        fs::write(folder.path().join("9400.new"), "rest").unwrap();
        fs::write(folder.path().join("[::1]:9400.token"), "rest").unwrap();
        let first = create("127.0.0.1:9400");
        let second = create("127.0.0.2:9400");
        assert_eq!(names_in(folder.path()), ["127.0.0.2:9400.token", "9400.token"]);
        for (file, name) in [(&first, "9400.token"), (&second, "127.0.0.2:9400.token")] {
            let path = folder.path().join(name);
            assert_eq!((&Token::read(&path).unwrap(), mode(&path)), (file.token(), 0o600));
        }
        drop(second);
        assert_eq!(names_in(folder.path()), ["9400.token"]);
        let second = create("127.0.0.2:9400");
        drop(first);
        assert_eq!(names_in(folder.path()), ["127.0.0.2:9400.token"]);
        let third = create("127.0.0.1:9400");
        assert_eq!(names_in(folder.path()), ["127.0.0.2:9400.token", "9400.token"]);
        assert_ne!(second.token(), third.token());
    }

    #[test]
    fn the_file_of_a_server_that_was_killed_is_the_next_ones() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("9400.token");
        fs::write(&path, "0123456789abcdef0123456789abcdef\n").unwrap();
        let file = TokenFile::create_in(folder.path(), &at(&["127.0.0.1:9400"])).unwrap();
        assert_eq!((&Token::read(&path).unwrap(), file.path()), (file.token(), Some(&*path)));
    }

    #[test]
    fn a_folder_that_cannot_be_written_to_is_an_error_with_the_path() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = TokenFile::create_in(file.path(), &at(&["127.0.0.1:9400"])).unwrap_err();
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
        let names = |url: &str| {
            let system = files(url).into_iter().filter(|path| path.starts_with(SYSTEM));
            system.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
        };
        let own: Vec<String> = names("http://127.0.0.2:9400");
        assert_eq!((&*own[0], &**own.last().unwrap()), ("127.0.0.2:9400.token", "9400.token"));
        let of_name: Vec<String> = names("http://localhost:9400");
        assert_eq!(of_name[..2], ["127.0.0.1:9400.token", "[::1]:9400.token"]);
    }
}
