//! The folder of flight records: what they are called, and how many stay.

use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, io};

/// What all of them begin with, and nothing else that may lie there: what does, goes when there are too many.
const PREFIX: &str = "flight-";
const ENDING: &str = ".db";
/// What SQLite keeps beside a file.
const BESIDE: [&str; 4] = ["", "-wal", "-shm", "-journal"];
/// The longest part of a name that comes from elsewhere, in bytes.
const LONGEST_PART: usize = 80;

/// Where they go.
#[derive(Debug)]
pub(super) struct Folder {
    dir: PathBuf,
    max_files: usize,
}

/// Where one goes.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) path: PathBuf,
    /// Where it is until it is whole: the same for all.
    pub(super) partial: PathBuf,
}

/// What cannot lead out of the folder, nor steer a terminal that lists it.
fn plain(text: &str) -> String {
    let plain = text.chars().map(|c| match c {
        c if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') => c,
        _ => '_',
    });
    plain.take(LONGEST_PART).collect()
}

fn removed(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

impl Folder {
    pub(super) const fn new(dir: PathBuf, max_files: usize) -> Self {
        Self { dir, max_files }
    }

    /// Whether files can be made there.
    pub(super) fn check(dir: &Path) -> io::Result<()> {
        let probe = dir.join(format!(".{PREFIX}{}", std::process::id()));
        // Not through a link that somebody has laid there.
        fs::File::create_new(&probe)?;
        fs::remove_file(&probe)
    }

    fn partial(&self) -> PathBuf {
        self.dir.join(format!(".{PREFIX}partial"))
    }

    /// Nothing is left of a file that was not finished.
    pub(super) fn remove_partial(&self) {
        for suffix in BESIDE {
            let mut path = self.partial().into_os_string();
            path.push(suffix);
            if let Err(error) = removed(Path::new(&path)) {
                tracing::warn!(path = %path.display(), %error, "a part of a flight record stays");
            }
        }
    }

    /// The place of a file by node, moment in seconds since the Unix epoch, and what it is about.
    pub(super) fn place(&self, node: &str, unix_seconds: f64, about: &str) -> Place {
        let name = format!("{PREFIX}{}-{unix_seconds:.3}-{}", plain(node), plain(about));
        Place { path: self.dir.join(format!("{name}{ENDING}")), partial: self.partial() }
    }

    /// Gives a file that is whole its name; the oldest go when there are too many.
    pub(super) fn keep(&self, place: &Place) -> io::Result<()> {
        fs::rename(&place.partial, &place.path)?;
        if let Err(error) = self.remove_oldest() {
            tracing::warn!(dir = %self.dir.display(), %error, "old flight records stay");
        }
        Ok(())
    }

    fn remove_oldest(&self) -> io::Result<()> {
        let mut files = self.files()?;
        files.sort();
        let excess = files.len().saturating_sub(self.max_files);
        files[..excess].iter().try_for_each(|(_, path)| removed(path))
    }

    /// The files that are there, with the moments at which they were written.
    fn files(&self) -> io::Result<Vec<(SystemTime, PathBuf)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let is_own = name
                .to_str()
                .is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(ENDING));
            if is_own {
                files.push((entry.metadata()?.modified()?, entry.path()));
            }
        }
        Ok(files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_oldest_go_and_what_is_somebody_elses_stays() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("notes.db"), "mine").unwrap();
        let folder = Folder::new(dir.path().to_owned(), 2);
        for (second, about) in [(1.0, "a"), (2.0, "b"), (3.0, "c")] {
            let place = folder.place("gpu-1", second, about);
            fs::write(&place.partial, about).unwrap();
            let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs_f64(second);
            fs::File::options().write(true).open(&place.partial).unwrap().set_modified(at).unwrap();
            folder.keep(&place).unwrap();
        }
        let kept = ["flight-gpu-1-2.000-b.db", "flight-gpu-1-3.000-c.db", "notes.db"];
        assert_eq!(names(dir.path()), kept);
    }

    #[test]
    fn no_name_leads_out_of_the_folder() {
        let folder = Folder::new("/records".into(), 1);
        let place = folder.place("../../etc", 1.5, &format!("a/\u{1b}[2J{}", "x".repeat(300)));
        assert_eq!(place.path.parent(), Some(Path::new("/records")));
        let name = place.path.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("flight-.._.._etc-1.500-a___2Jxxx"), "{name}");
        assert!(name.len() < 200, "{name}");
    }

    #[test]
    fn nothing_is_left_of_a_file_that_was_not_finished() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(dir.path().to_owned(), 1);
        let place = folder.place("n", 1.0, "a");
        for suffix in ["", "-wal", "-shm"] {
            fs::write(format!("{}{suffix}", place.partial.display()), "").unwrap();
        }
        folder.remove_partial();
        assert_eq!(names(dir.path()), Vec::<String>::new());
    }

    #[test]
    fn a_folder_in_which_nothing_can_be_made_is_told() {
        let dir = tempfile::tempdir().unwrap();
        Folder::check(dir.path()).unwrap();
        assert_eq!(names(dir.path()), Vec::<String>::new());
        assert!(Folder::check(&dir.path().join("missing")).is_err());
    }
}
