//! Renders the shared definitions as a C header.

use std::fmt::Write as _;

use crate::c_record::CRecord;
use crate::event::{self, EventKind};
use crate::hist;
use crate::measure;
use crate::op::{self, Api, Class, CopyKind, LoadClass};
use crate::python;
use crate::record::{self, ArgRole, BytesKind, GrowingMap, HistKind, SelfCounter, c_records};
use crate::sample;
use crate::state::{BlockOperation, Fault, LockKind, Phase, Reason, Relation, Role, Switch};

/// The C header with every constant, enum and record that this crate shares with the kernel programs. Sizes and
/// offsets are asserted in C against the Rust layout.
pub fn c_header() -> String {
    let mut text = String::from("/* Generated from the gpucause-abi crate. */\n#pragma once\n\n");
    for (name, value) in constants() {
        let _ = writeln!(text, "#define {name} {value}");
    }
    c_enum(&mut text, Api::C_PREFIX, Api::ALL.iter().map(|v| v.label()));
    c_enum(&mut text, Class::C_PREFIX, Class::ALL.iter().map(|v| v.label()));
    c_enum(&mut text, LoadClass::C_PREFIX, LoadClass::ALL.iter().map(|v| v.label()));
    c_enum(&mut text, Reason::C_PREFIX, Reason::ALL.iter().map(|v| v.label()));
    c_enum(&mut text, LockKind::C_PREFIX, LockKind::ALL.iter().map(|v| v.label()));
    c_enum(&mut text, Relation::C_PREFIX, Relation::ALL.iter().map(|v| v.label()));
    c_enum(&mut text, Role::C_PREFIX, Role::ALL.iter().map(|v| v.label()));
    c_enum(&mut text, CopyKind::C_PREFIX, CopyKind::ALL.iter().map(|v| v.label()));
    c_enum(&mut text, ArgRole::C_PREFIX, ArgRole::ALL.iter().map(|v| v.label()));
    c_enum(&mut text, BytesKind::C_PREFIX, BytesKind::ALL.iter().map(|v| v.label()));
    c_enum(&mut text, Phase::C_PREFIX, Phase::ALL.iter().map(|v| v.label()));
    c_enum(&mut text, Switch::C_PREFIX, Switch::ALL.iter().map(|v| v.label()));
    c_enum(&mut text, Fault::C_PREFIX, Fault::ALL.iter().map(|v| v.label()));
    c_enum(&mut text, BlockOperation::C_PREFIX, BlockOperation::ALL.iter().map(|v| v.label()));
    c_enum(&mut text, HistKind::C_PREFIX, HistKind::ALL.iter().map(|v| v.label()));
    c_enum(&mut text, SelfCounter::C_PREFIX, SelfCounter::ALL.iter().map(|v| v.label()));
    c_enum(&mut text, GrowingMap::C_PREFIX, GrowingMap::ALL.iter().map(|v| v.label()));
    c_enum(&mut text, EventKind::C_PREFIX, EventKind::ALL.iter().map(|v| v.label()));
    for record in measure::c_records()
        .iter()
        .chain(&c_records())
        .chain(&event::c_records())
        .chain(&python::c_records())
        .chain(&sample::c_records())
    {
        c_record(&mut text, record);
    }
    text
}

/// Numbers that both languages share.
fn constants() -> Vec<(&'static str, usize)> {
    vec![
        ("HIST_UNIT_SLOTS", hist::UNIT_SLOTS as usize),
        ("HIST_SUB_SLOTS", hist::SUB_SLOTS as usize),
        ("HIST_UNIT_SHIFT", hist::UNIT_SHIFT as usize),
        ("HIST_MAX_EXPONENT", hist::MAX_EXPONENT as usize),
        ("SLOTS", hist::SLOTS),
        ("CHUNK_SLOTS", record::CHUNK_SLOTS),
        ("MAX_DEPTH", record::MAX_DEPTH),
        ("MAX_RETRIES", record::MAX_RETRIES),
        ("MAX_TENURES", record::MAX_TENURES),
        ("COMM_LEN", record::COMM_LEN),
        ("DEVICE_LEN", record::DEVICE_LEN),
        ("REASONS", record::REASONS),
        ("ROLES", record::ROLES),
        ("SIZE_CLASSES", record::SIZE_CLASSES),
        ("PHASES", record::PHASES),
        ("STATES", record::STATES),
        ("ACCOUNT_CELLS", record::ACCOUNT_CELLS),
        ("SWITCHES", record::SWITCHES),
        ("FAULTS", record::FAULTS),
        ("BLOCK_OPERATIONS", record::BLOCK_OPERATIONS),
        ("CTX_SWITCHES", record::CTX_SWITCHES),
        ("MAX_OPS", record::MAX_OPS),
        ("MAX_BATCH", op::MAX_BATCH),
        ("ARGUMENT_STACK", op::STACK.into()),
        ("MAX_ALLOCATIONS", record::MAX_ALLOCATIONS),
        ("MAX_KERNELS", record::MAX_KERNELS),
        ("CALL_COLD", record::CALL_COLD as usize),
        ("CALL_STALLED", record::CALL_STALLED as usize),
        ("CALL_NESTED", record::CALL_NESTED as usize),
        ("CALIBRATE_TIMED", record::CALIBRATE_TIMED as usize),
        ("CALIBRATE_COUNTED", record::CALIBRATE_COUNTED as usize),
        ("CALIBRATE_LOOKUP", record::CALIBRATE_LOOKUP as usize),
        ("LINK_RETIRING", record::LINK_RETIRING as usize),
        ("LINK_CLOSED", record::LINK_CLOSED as usize),
        ("MAX_KERNEL_NAMES", record::MAX_KERNEL_NAMES),
        ("KERNEL_NAME_LEN", record::KERNEL_NAME_LEN),
        ("KERNEL_HISTS", record::KERNEL_HISTS),
        ("MAX_NAMES", record::MAX_NAMES),
        ("MAX_CPUS", record::MAX_CPUS),
        ("MAX_VICTIMS", record::MAX_VICTIMS),
        ("MAX_LINKS", record::MAX_LINKS),
        ("MAX_SYSCALLS", record::MAX_SYSCALLS),
        ("HIT_BATCH", record::HIT_BATCH),
        ("SPENT_RAN_UNIT", record::SPENT_RAN_UNIT),
        ("LOADS", record::LOADS),
        ("ASYNC_ONE_IN", record::ASYNC_ONE_IN),
        ("SHED_QUERIES", record::SHED_QUERIES as usize),
        ("SHED_ASYNCS", record::SHED_ASYNCS as usize),
        ("DRIVER_ONLY_BEGINS", record::DRIVER_ONLY_BEGINS as usize),
        ("FILTER_SLOTS", record::FILTER_SLOTS),
        ("WAKES_FUTEX", crate::syscall::WAKES_FUTEX as usize),
        ("WAKES_FD", crate::syscall::WAKES_FD as usize),
        ("HOLDS_LOCK", crate::syscall::HOLDS_LOCK as usize),
        ("RELEASES_FILE_LOCK", crate::syscall::RELEASES_FILE_LOCK as usize),
        ("MAKES_ROOM", crate::syscall::MAKES_ROOM as usize),
        ("FIRST_ARG_IS_FD", crate::syscall::FIRST_ARG_IS_FD as usize),
        ("ASKS_FILE_SYSTEM", crate::syscall::ASKS_FILE_SYSTEM as usize),
        ("WRITES", crate::syscall::WRITES as usize),
        ("SELF_COUNTERS", record::SELF_COUNTERS),
        ("GROWING_MAPS", record::GROWING_MAPS),
        ("EVENT_WORDS", event::EVENT_WORDS),
        ("STACK_FRAMES", event::STACK_FRAMES),
        ("PYTHON_FRAMES", python::PYTHON_FRAMES),
        ("SAMPLE_FRAMES", sample::SAMPLE_FRAMES),
        ("SAMPLES_PER_SECOND", sample::SAMPLES_PER_SECOND as usize),
        ("MAX_SAMPLED", sample::MAX_SAMPLED),
        ("SAMPLED_ANYWHERE", sample::SAMPLED_ANYWHERE as usize),
        ("SAMPLED_HOST", sample::SAMPLED_HOST as usize),
        ("SAMPLE_NATIVE", sample::SAMPLE_NATIVE as usize),
        ("SAMPLE_PYTHON", sample::SAMPLE_PYTHON as usize),
        ("EVENT_COLD", event::EVENT_COLD.into()),
        ("EVENT_OUTERMOST", event::EVENT_OUTERMOST.into()),
        ("EVENT_BYTES", event::EVENT_BYTES.into()),
        ("EVENT_KERNEL", event::EVENT_KERNEL.into()),
        ("EVENT_COPY_SHIFT", event::EVENT_COPY_SHIFT as usize),
        ("EVENT_SAMPLED", event::EVENT_SAMPLED.into()),
        ("EVENT_HELPER", event::EVENT_HELPER.into()),
        ("EVENT_LOCK", event::EVENT_LOCK.into()),
    ]
}

fn c_record(text: &mut String, record: &CRecord) {
    let _ = writeln!(text, "\nstruct {} {{", record.name);
    for (field, ty, _) in &record.fields {
        let _ = writeln!(text, "\t{};", c_field(field, ty));
    }
    text.push_str("};\n");
    let _ = writeln!(
        text,
        "_Static_assert(sizeof(struct {}) == {}, \"size\");",
        record.name, record.size
    );
    for (field, _, offset) in &record.fields {
        let _ = writeln!(
            text,
            "_Static_assert(__builtin_offsetof(struct {}, {field}) == {offset}, \"{field}\");",
            record.name
        );
    }
}

fn c_enum<'a>(text: &mut String, prefix: &str, labels: impl Iterator<Item = &'a str>) {
    text.push_str("\nenum {\n");
    for (value, label) in labels.enumerate() {
        let _ = writeln!(text, "\t{prefix}_{} = {value},", label.to_ascii_uppercase());
    }
    text.push_str("};\n");
}

fn c_field(name: &str, ty: &str) -> String {
    match ty
        .strip_prefix('[')
        .and_then(|array| array.strip_suffix(']'))
        .and_then(|array| array.split_once(';'))
    {
        Some((element, length)) => format!("{} {name}[{}]", c_type(element.trim()), length.trim()),
        None => format!("{} {name}", c_type(ty)),
    }
}

fn c_type(ty: &str) -> String {
    match ty {
        "u8" => "__u8".into(),
        "u16" => "__u16".into(),
        "u32" => "__u32".into(),
        "u64" | "Nanos" => "__u64".into(),
        record => c_records_name(record)
            .map_or_else(|| format!("unknown_{record}"), |name| format!("struct {name}")),
    }
}

fn c_records_name(rust_name: &str) -> Option<&'static str> {
    match rust_name {
        "FrameRecord" => Some("frame"),
        "AccountRecord" => Some("account"),
        "PythonLayout" => Some("python_layout"),
        "OtherTaskRecord" => Some("other_task"),
        "LaunchModeRecord" => Some("launch_mode"),
        "Measures" => Some("measures"),
        "LoadRecord" => Some("load"),
        "TenureRecord" => Some("tenure"),
        "RetryRecord" => Some("retry"),
        "KernelKey" => Some("kernel_key"),
        "HistKey" => Some("hist_key"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_knows_every_type_it_names() {
        assert!(!c_header().contains("unknown_"));
    }

    #[test]
    fn header_declares_arrays_the_c_way() {
        assert!(c_header().contains("\t__u64 slots[CHUNK_SLOTS];\n"));
        assert!(c_header().contains("\tstruct frame frames[MAX_DEPTH];\n"));
        assert!(c_header().contains("\tREASON_PAGE_FAULT = 4,\n"));
    }
}
