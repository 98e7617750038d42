//! The worked cases of `investigations/cases`: each trace file shows what its workload says of itself, tells nothing else of the
//! host that it was recorded on, and answers as its page says. `GPUCAUSE_BLESS=1` rewrites the answers on the pages.

mod chain;
mod page;
mod recorded;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

fn investigations() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../investigations")
}

fn folder() -> PathBuf {
    investigations().join("cases")
}

/// A case, and what its workload says of itself.
#[derive(Debug)]
struct Case {
    name: String,
    expected: Expected,
}

/// By the workload's own account, the file must have this chain.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    cause: String,
    effect: String,
    victim: String,
    culprit: Option<String>,
    /// The part by which the chain's loss may differ from the workload's.
    tolerance: f64,
    /// Each pair is a time in seconds since the Unix epoch and the seconds lost by then.
    lost_seconds: Vec<(f64, f64)>,
}

impl Case {
    fn file(&self, ending: &str) -> PathBuf {
        folder().join(format!("{}.{ending}", self.name))
    }

    fn db(&self) -> PathBuf {
        self.file("db")
    }

    fn page(&self) -> String {
        fs::read_to_string(self.file("md")).unwrap()
    }
}

/// Names of the files of a kind in the folder.
fn names(ending: &str) -> BTreeSet<String> {
    let files = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let own = files.filter(|path| path.extension().is_some_and(|own| own == ending));
    own.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

/// All of them.
fn cases() -> Vec<Case> {
    let names = names("db");
    assert!(names.len() >= 6, "{names:?}");
    let case = |name: String| {
        let text = fs::read_to_string(folder().join(format!("{name}.json"))).unwrap();
        let expected =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        Case { name, expected }
    };
    names.into_iter().map(case).collect()
}
