//! Checks of the compiled programs without loading them.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failing test may panic")]

use std::collections::BTreeMap;

use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SymbolKind};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/gpucause.bpf.o"));

/// The kernel rounds a frame up to 16 bytes and moves it to a per-CPU stack from 64 on.
const LARGEST_FRAME: i32 = 48;

const FRAME_POINTER: u8 = 10;
const MOVE_REGISTER: u8 = 0xbf;
const ADD_IMMEDIATE: u8 = 0x07;

/// One instruction: opcode, destination, source, offset, immediate.
fn instructions(code: &[u8]) -> impl Iterator<Item = (u8, u8, u8, i16, i32)> {
    code.chunks_exact(8).map(|i| {
        let offset = i16::from_le_bytes([i[2], i[3]]);
        (i[0], i[1] & 0xf, i[1] >> 4, offset, i32::from_le_bytes([i[4], i[5], i[6], i[7]]))
    })
}

/// The deepest byte of the frame that the code loads, stores, or takes the address of.
fn frame_size(code: &[u8]) -> i32 {
    let mut copies = [false; 16];
    let mut deepest = 0;
    for (opcode, to, from, offset, immediate) in instructions(code) {
        let class = opcode & 0x7;
        let (loads, stores) = (class == 0x1, class == 0x2 || class == 0x3);
        if (loads && from == FRAME_POINTER) || (stores && to == FRAME_POINTER) {
            deepest = deepest.max(-i32::from(offset));
        }
        if opcode == MOVE_REGISTER {
            copies[usize::from(to)] = from == FRAME_POINTER;
        } else if opcode == ADD_IMMEDIATE && copies[usize::from(to)] {
            deepest = deepest.max(-immediate);
            copies[usize::from(to)] = false;
        } else if !stores && class != 0x5 && class != 0x6 {
            copies[usize::from(to)] = false;
        }
    }
    deepest
}

fn frames_by_function() -> BTreeMap<String, i32> {
    let file = object::File::parse(OBJECT).unwrap();
    let mut frames = BTreeMap::new();
    for symbol in
        file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0)
    {
        let section = file.section_by_index(symbol.section_index().unwrap()).unwrap();
        let start = usize::try_from(symbol.address()).unwrap();
        let end = start + usize::try_from(symbol.size()).unwrap();
        frames.insert(
            symbol.name().unwrap().to_owned(),
            frame_size(&section.data().unwrap()[start..end]),
        );
    }
    frames
}

#[test]
fn no_function_has_a_frame_that_the_kernel_would_put_on_a_per_cpu_stack() {
    let frames = frames_by_function();
    assert!(frames.contains_key("call_session") && frames.contains_key("enter"), "{frames:?}");
    assert!(frames.values().any(|&size| size > 0), "no frame was measured: {frames:?}");
    let large: Vec<_> = frames.iter().filter(|&(_, &size)| size > LARGEST_FRAME).collect();
    assert!(large.is_empty(), "{large:?}");
}

#[test]
fn program_and_map_names_differ_within_what_the_kernel_keeps_of_them() {
    let file = object::File::parse(OBJECT).unwrap();
    let functions = file.section_by_name(".text").map(|section| section.index());
    let mut names: Vec<_> = file
        .symbols()
        .filter(|symbol| {
            symbol.is_global() && matches!(symbol.kind(), SymbolKind::Text | SymbolKind::Data)
        })
        // Functions that programs call are in a section of their own.
        .filter(|symbol| symbol.section_index() != functions)
        .map(|symbol| symbol.name().unwrap().chars().take(15).collect::<String>())
        .collect();
    let all = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), all);
}
