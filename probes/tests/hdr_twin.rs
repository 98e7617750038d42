//! The C and the Rust side must count every value in the same slot.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failing test may panic")]

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use gpucause_abi::Nanos;
use gpucause_abi::hist::{SLOTS, slot_lower, slot_of};
use gpucause_abi::record::CHUNK_SLOTS;

const MAIN: &str = r#"
#include <stdio.h>
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef unsigned short __u16;
typedef unsigned char __u8;
#include "abi.h"
#include "hist.h"
int main(void) {
    __u64 value;
    while (fread(&value, sizeof(value), 1, stdin) == 1) {
        __u32 slot = hdr_slot(value);
        __u32 found[2] = { slot, hdr_chunk(slot) };
        fwrite(found, sizeof(found), 1, stdout);
    }
    return 0;
}
"#;

/// Every slot edge and its neighbours, every power of two and its neighbours, and random values of every magnitude.
fn values() -> Vec<u64> {
    let mut values = vec![0, u64::MAX];
    for slot in 0..=SLOTS {
        let edge = slot_lower(slot).0;
        values.extend([edge.saturating_sub(1), edge, edge + 1]);
    }
    for exponent in 0..64 {
        let power = 1u64 << exponent;
        values.extend([power - 1, power, power + 1]);
    }
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for index in 0..1_000_000u32 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        values.push(state >> (index % 64));
    }
    values
}

#[test]
fn c_and_rust_choose_the_same_slot_and_chunk_for_every_edge_and_a_million_random_values() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("abi.h"), gpucause_abi::c_header()).unwrap();
    let source = dir.path().join("twin.c");
    std::fs::write(&source, MAIN).unwrap();
    let binary = dir.path().join("twin");
    let headers = Path::new(env!("CARGO_MANIFEST_DIR")).join("bpf");
    let compiled = Command::new("clang")
        .args(["-O2", "-I"])
        .arg(dir.path())
        .arg("-I")
        .arg(headers)
        .arg("-o")
        .args([&binary, &source])
        .status()
        .expect("clang must be installed");
    assert!(compiled.success());

    let values = values();
    let mut twin =
        Command::new(binary).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = twin.stdin.take().unwrap();
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
    let writer = std::thread::spawn(move || stdin.write_all(&bytes).unwrap());
    let output = twin.wait_with_output().unwrap();
    writer.join().unwrap();
    let found: Vec<usize> = output
        .stdout
        .chunks_exact(4)
        .map(|c| u32::from_ne_bytes(c.try_into().unwrap()) as usize)
        .collect();
    assert_eq!(found.len(), 2 * values.len());
    for (value, found) in values.into_iter().zip(found.chunks_exact(2)) {
        let slot = slot_of(Nanos(value));
        assert_eq!(found, [slot, slot / CHUNK_SLOTS], "value {value}");
    }
}
