//! The parts that are charged of an interval off the CPU whose end the kernel did not report are within the interval, and right where
//! the scheduler's count is.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failing test may panic")]

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

const MAIN: &str = r#"
#include <stdio.h>
typedef unsigned long long __u64;
#include "switch_in.h"
int main(void) {
    __u64 in[5], out[2];
    while (fread(in, sizeof(in), 1, stdin) == 1) {
        out[0] = blocked_until(in[0], in[1], in[2]);
        out[1] = queued_for(out[0], in[2], in[3], in[4]);
        fwrite(out, sizeof(out), 1, stdout);
    }
    return 0;
}
"#;

/// When the interval began, when the thread was woken, now, and the scheduler's count of its waits for a CPU then and now.
type Known = [u64; 5];

/// When the blocked part ended, and how long the wait for a CPU was.
fn parts(known: &[Known]) -> Vec<[u64; 2]> {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("parts.c");
    std::fs::write(&source, MAIN).unwrap();
    let binary = dir.path().join("parts");
    let compiled = Command::new("clang")
        .args(["-O2", "-I"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("bpf"))
        .args([&source, Path::new("-o"), &binary])
        .status()
        .expect("clang is needed to build the programs");
    assert!(compiled.success());
    let mut child =
        Command::new(&binary).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let bytes: Vec<u8> = known.iter().flatten().flat_map(|value| value.to_ne_bytes()).collect();
    let writer = std::thread::spawn(move || input.write_all(&bytes).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let words =
        output.stdout.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
    let words: Vec<u64> = words.collect();
    words.as_chunks().0.to_vec()
}

#[test]
fn a_wait_that_is_known_is_charged_whole_and_the_rest_is_running() {
    let known = [
        // Blocked from 100 to 300, queued for 50.
        [100, 300, 1_000, 7, 57],
        // Woken as it was about to block, and in the run queue from then on.
        [100, 90, 1_000, 7, 57],
        // Nobody knows who woke it.
        [100, 0, 1_000, 7, 57],
        // It got its CPU at once.
        [100, 300, 1_000, 7, 7],
    ];
    assert_eq!(parts(&known), [[300, 50], [100, 50], [100, 50], [300, 0]]);
}

#[test]
fn clocks_and_counts_that_disagree_never_charge_more_than_the_interval() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Values near one another, and far apart.
        if state & 1 == 0 { state % 64 } else { state >> (state % 64) }
    };
    let mut known: Vec<Known> = (0..200_000).map(|_| std::array::from_fn(|_| random())).collect();
    known.extend([[0, u64::MAX, u64::MAX, 0, u64::MAX], [u64::MAX, 0, 0, u64::MAX, 0]]);
    for ([since, woken, now, ..], [blocked, queued]) in known.iter().zip(parts(&known)) {
        let end = blocked.checked_add(queued).expect("no time overflows");
        let case = (since, woken, now, blocked, queued);
        assert!(blocked >= *since && (blocked == *since || blocked == *woken), "{case:?}");
        assert!(end <= *now.max(since), "{case:?}");
    }
}
