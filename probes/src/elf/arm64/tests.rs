use super::*;

/// stp x29, x30, [sp, #-32]!
const SAVE: u32 = 0xa9be_7bfd;
/// mov x29, sp
const FRAME: u32 = 0x9100_03fd;
/// mov x19, x0
const KEEP: u32 = 0xaa00_03f3;
/// bl to somewhere behind the function.
const CALL: u32 = 0x9400_1000;
/// mov w0, #0
const ZERO: u32 = 0x5280_0000;
/// ldp x29, x30, [sp], #32
const RESTORE: u32 = 0xa8c2_7bfd;

fn passage_of(words: &[u32]) -> Option<Passage> {
    passage(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>())
}

/// cbz x0, so many instructions on.
fn cbz(by: u32) -> u32 {
    0xb400_0000 | by << 5
}

/// b, so many instructions on.
fn b(by: i32) -> u32 {
    0x1400_0000 | by.cast_unsigned() & 0x03ff_ffff
}

#[test]
fn a_call_is_seen_at_the_first_branch_and_at_each_return() {
    let code = [SAVE, FRAME, KEEP, CALL, cbz(4), ZERO, RESTORE, RET, ZERO, RESTORE, RET];
    let expected = Passage { entry: 12, reserved: 32, returns: vec![28, 40] };
    assert_eq!(passage_of(&code), Some(expected));
    // sub sp, sp, #400; stp x29, x30, [sp, #16]; add x29, sp, #16; adrp x19; ldp x29, x30, [sp, #16]; add sp, sp, #400; ret
    let code = [0xd106_43ff, 0xa901_7bfd, 0x9100_43fd, 0x9000_0013, 0xa941_7bfd, 0x9106_43ff, RET];
    let expected = Passage { entry: 12, reserved: 400, returns: vec![24] };
    assert_eq!(passage_of(&code), Some(expected));
}

#[test]
fn a_stack_pointer_that_comes_back_from_the_frame_pointer_is_known() {
    // sub sp, sp, x9 in between would not be, and mov sp, x29 makes up for it only where it was known before.
    let by_frame = [SAVE, FRAME, CALL, 0xd100_43ff, 0x9100_03bf, RESTORE, RET];
    assert_eq!(passage_of(&by_frame).map(|own| own.returns), Some(vec![24]));
    let unknown = [SAVE, FRAME, CALL, 0xcb29_63ff, 0x9100_03bf, RESTORE, RET];
    assert_eq!(passage_of(&unknown), None);
}

#[test]
fn a_start_that_changes_an_argument_or_the_return_address_has_no_place() {
    // add x0, sp, #72; ldr x3, [x19]; paciasp; str x1, [x2], #8; ldr x30, [sp]; swp x1, x2, [x3]
    for word in [0x9101_23e0, 0xf940_0263, 0xd503_233f, 0xf800_8441, 0xf940_03fe, 0xf821_8062] {
        assert_eq!(passage_of(&[SAVE, word, CALL, RESTORE, RET]), None, "{word:08x}");
        assert!(!keeps_arguments(word), "{word:08x}");
    }
    // str x3, [sp, #80]; ldr x20, [sp, #368]; mrs x19, tpidr_el0; fmov d8, x6; ccmp x1, #0, #4, ne; str xzr, [x9, x10]
    for word in [0xf900_2be3, 0xf940_bbf4, 0xd53b_d053, 0x9e67_00c8, 0xfa40_1824, 0xf82a_693f] {
        let found = passage_of(&[SAVE, word, CALL, RESTORE, RET]);
        assert_eq!(found.map(|own| own.entry), Some(8), "{word:08x}");
    }
}

#[test]
fn ways_that_are_not_all_known_leave_a_function_out() {
    for (code, what) in [
        (vec![SAVE, CALL, RESTORE], "it falls off its end"),
        (vec![SAVE, CALL, RET], "it returns with another stack pointer"),
        (vec![SAVE, CALL, 0xd61f_0200, RESTORE, RET], "br x16"),
        (vec![SAVE, CALL, 0xd65f_0bff, RESTORE, RET], "retaa"),
        (vec![SAVE, CALL, 0x5400_0050, RESTORE, RET], "bc.eq"),
        (vec![SAVE, CALL, 0x5500_001f, RESTORE, RET], "retaasppc"),
        (vec![0xd15f_ffff; 8].into_iter().chain([CALL, RET]).collect(), "16 MiB are reserved"),
        (vec![SAVE, CALL, RESTORE, b(100)], "a call that it ends with"),
        (vec![SAVE, CALL, cbz(2), SAVE, RESTORE, RET], "paths with other depths meet"),
        (vec![SAVE, KEEP, CALL, b(-1), RESTORE, RET], "it comes back to its start"),
        (vec![SAVE, KEEP, KEEP], "there is no branch"),
        (vec![], "there is no code"),
    ] {
        assert_eq!(passage_of(&code), None, "{what}");
    }
}

#[test]
fn what_no_path_leads_to_is_no_return() {
    // brk #1 ends a path; the word behind it may be data that looks like a return.
    let code = [SAVE, CALL, cbz(3), RESTORE, RET, 0xd420_0020, RET, RET];
    let found = passage_of(&code).unwrap();
    assert_eq!(found.returns, [16]);
}

#[test]
fn any_bytes_have_an_answer() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..20_000 {
        let words: Vec<u32> = (0..24)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 32) as u32
            })
            .collect();
        if let Some(found) = passage_of(&words) {
            assert!(found.returns.iter().all(|at| words[usize::try_from(at / 4).unwrap()] == RET));
        }
    }
    assert_eq!(passage(&[1, 2, 3]), None);
}
