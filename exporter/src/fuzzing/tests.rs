//! These tests read the fuzzing corpus again, and inputs like it: a part of `make fuzz` that needs no engine.

use super::{TARGETS, Target};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// Variants of each file that are tried.
const VARIANTS: usize = 30;
/// Seconds to try more of them, for each target.
const SECONDS: &str = "GPUCAUSE_FUZZ_SECONDS";
/// The only target to try more of.
const ONLY: &str = "GPUCAUSE_FUZZ_TARGET";

/// The corpus of each target, by its name.
static CORPUS: LazyLock<HashMap<&str, Vec<Vec<u8>>>> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus.tar.gz");
    let mut tar = Command::new("tar");
    let ended = tar.arg("-xzf").arg(archive).arg("-C").arg(folder.path()).status().unwrap();
    assert!(ended.success(), "tar: {ended}");
    let corpus = folder.path().join("corpus");
    TARGETS.iter().map(|(name, _)| (*name, inputs(&corpus.join(name)))).collect()
});

/// The contents of a folder's files, by their names.
fn inputs(folder: &Path) -> Vec<Vec<u8>> {
    let files = std::fs::read_dir(folder).unwrap();
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= 3, "{} has nothing to read", folder.display());
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// Random numbers, the same in every run.
struct Rng(u64);

impl Rng {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % limit.max(1)
    }

    fn range(&mut self, length: usize) -> std::ops::Range<usize> {
        let (a, b) = (self.below(length + 1), self.below(length + 1));
        a.min(b)..a.max(b)
    }

    /// Changes a few things in an input, some by what stands in another one.
    fn vary(&mut self, input: &mut Vec<u8>, other: &[u8]) {
        for _ in 0..=self.below(6) {
            let at = self.below(input.len() + 1);
            match self.below(8) {
                0 => drop(input.drain(self.range(input.len()))),
                1 => {
                    let part = other[self.range(other.len())].to_vec();
                    drop(input.splice(at..at, part));
                }
                2 => {
                    let part = input[self.range(input.len())].to_vec();
                    drop(input.splice(at..at, part.repeat(1 + self.below(4))));
                }
                3 => {
                    let number =
                        [0, 1, 0x7f, 0x80, 0xff, u64::MAX, 1 << 31, 1 << 63][self.below(8)];
                    let bytes = &number.to_le_bytes()[..1 << self.below(4)];
                    let end = input.len().min(at + bytes.len());
                    drop(input.splice(at..end, bytes.iter().copied()));
                }
                4 => input.truncate(at),
                _ if at < input.len() => input[at] = u8::try_from(self.below(256)).unwrap(),
                _ => input.push(u8::try_from(self.below(256)).unwrap()),
            }
        }
        input.truncate(1 << 16);
    }
}

/// Runs a target; an input that does harm stays in a file, also when it ends the process.
fn run(name: &str, target: Target, input: &[u8]) {
    let own = (std::process::id(), std::thread::current().id());
    let path = std::env::temp_dir().join(format!("gpucause-{name}-{own:?}"));
    std::fs::write(&path, input).unwrap();
    let outcome = catch_unwind(AssertUnwindSafe(|| target(input)));
    assert!(outcome.is_ok(), "{name} does not stand {}", path.display());
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn what_fuzzing_has_found_is_read_without_harm() {
    for (name, target) in TARGETS {
        CORPUS[name].iter().for_each(|input| run(name, target, input));
    }
}

#[test]
fn inputs_like_those_do_no_harm() {
    let seconds = std::env::var(SECONDS).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let only = std::env::var(ONLY).ok();
    for (name, target) in TARGETS {
        if only.as_deref().is_some_and(|only| only != name) {
            continue;
        }
        let mut pool = CORPUS[name].clone();
        let mut rng = Rng(0x9e37_79b9_7f4a_7c15 ^ seconds);
        let (begin, mut runs, mut slowest) = (Instant::now(), 0, Duration::ZERO);
        while runs < VARIANTS * pool.len() || begin.elapsed() < Duration::from_secs(seconds) {
            let mut input = pool[rng.below(pool.len())].clone();
            let other = rng.below(pool.len());
            rng.vary(&mut input, &pool[other]);
            let started = Instant::now();
            run(name, target, &input);
            runs += 1;
            // Without an engine that sees what is reached, time is the one sign of something new.
            if seconds > 0 && started.elapsed() > slowest {
                slowest = started.elapsed();
                pool.push(input);
            }
        }
        println!("{name}: {runs} inputs, the slowest took {slowest:?}");
    }
}
