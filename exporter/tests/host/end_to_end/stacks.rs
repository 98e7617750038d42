//! Stacks of slow calls tell functions and lines, whatever became of the file that they are in.

use super::recording::{end, record};
use gpucause_fixture::exporter::gpucause;
use gpucause_fixture::workload::{Workload, libraries, program};
use gpucause_investigations::any_format;
use gpucause_trace::recording::{self, Filter, Kind, Stack, StackFrame};
use std::collections::BTreeSet;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

/// The stacks of one process's calls of this op.
pub(crate) fn stacks(db: &Path, pid: &str, op: &str) -> Vec<Stack> {
    let trace = any_format::open(db).unwrap();
    let mut ids = BTreeSet::new();
    let each = &mut |event: &recording::Event| {
        let process = &trace.processes()[event.process.0 as usize];
        if let (Kind::Call(call), Some(stack)) = (&event.kind, event.stack)
            && (&*call.op, &*process.pid.to_string()) == (op, pid)
        {
            ids.insert(stack);
        }
        ControlFlow::Continue(())
    };
    trace.events(&Filter::default(), each).unwrap();
    ids.into_iter().map(|id| trace.stack(id).unwrap().unwrap()).collect()
}

/// Returns what `addr2line` says of the call that returns to a frame: a function, and a file and line.
fn addr2line(file: &Path, frame: &StackFrame) -> (String, String) {
    let address = format!("{:#x}", frame.module_address.unwrap() - 1);
    let output =
        Command::new("addr2line").arg("-f").arg("-e").arg(file).arg(address).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (function, place) = text.trim_end().split_once('\n').unwrap();
    (function.to_owned(), place.split(' ').next().unwrap().to_owned())
}

#[test]
fn a_stack_has_the_functions_and_lines_of_a_program_that_was_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let (db, log) = (dir.path().join("trace.db"), dir.path().join("log"));
    let (copy, stripped) = (dir.path().join("train"), dir.path().join("bare"));
    fs::copy(program(), &copy).unwrap();
    // Line numbers are looked up only in files that only root may write.
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    let strip = Command::new("strip").arg("-o").args([&stripped, &copy]).status().unwrap();
    assert!(strip.success());
    let arguments = ["calls", "--calls=40", "--mix=cudaMemcpyAsync=1", "--libs"];
    let script = "--script=cudaMemcpyAsync:sleep=3ms";
    let arguments = [&arguments[..], &[libraries().to_str().unwrap(), script]].concat();
    let mut workloads = [&copy, &stripped].map(|program| Workload::of(program, &arguments));
    for program in [&copy, &stripped] {
        fs::remove_file(program).unwrap();
    }
    let recorder = record(&db, &log, &["--calls-from=2ms"]);
    for workload in &mut workloads {
        workload.work();
    }
    end(recorder, &log);
    let [pid, bare_pid] = [workloads[0].pid(), workloads[1].pid()];
    workloads.into_iter().for_each(Workload::end);

    let found = stacks(&db, &pid, "cudaMemcpyAsync");
    assert!(!found.is_empty());
    for stack in &found {
        let caller = &stack.frames[0];
        assert!(caller.module.as_deref().unwrap().ends_with("/train"), "{stack:?}");
        let (function, place) = addr2line(&program(), caller);
        assert!(!function.starts_with('?') && caller.function.is_some(), "{function}, {stack:?}");
        let location = format!("{}:{}", caller.file.as_ref().unwrap(), caller.line.unwrap());
        assert_eq!(Path::new(&location).file_name(), Path::new(&place).file_name(), "{stack:?}");
        let step = |frame: &StackFrame| {
            frame.function.as_deref().is_some_and(|own| own.contains("Caller::step"))
        };
        assert!(stack.frames.iter().any(step), "{stack:?}");
    }
    // A frame without symbols is shown as its module and the address from the linker.
    for stack in stacks(&db, &bare_pid, "cudaMemcpyAsync") {
        let caller = &stack.frames[0];
        assert_eq!((&caller.function, &caller.line), (&None, &None));
        assert_eq!(addr2line(&program(), caller).0, addr2line(&program(), &found[0].frames[0]).0);
        let address = caller.module_address.unwrap();
        assert_eq!(caller.to_string(), format!("bare+{address:#x}"));
    }

    let explained = gpucause(&["explain", "--db"]).arg(&db).output().unwrap();
    let explained = String::from_utf8(explained.stdout).unwrap();
    let section = explained.split("CALL STACKS").nth(1).unwrap();
    assert!(section.contains(&found[0].frames[0].to_string()), "{explained}");
}
