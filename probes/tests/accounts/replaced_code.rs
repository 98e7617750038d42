//! Functions whose code a program replaces in its memory, as UCX does: no breakpoint may hit the new code, nor be there first.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use gpucause_probes::Options;
use gpucause_probes::registry::{LibraryStatus, LibraryVerdict};
use tempfile::TempDir;

use crate::compile::compile;
use crate::observe::{Observed, counted, until};
use crate::workload::op;

const DRIVER: &str = r#"
unsigned cuLaunchKernel(unsigned long kernel) { return kernel == 0; }
unsigned cuMemAlloc_v2(unsigned long *memory, unsigned long size) { *memory = size; return 0; }
unsigned cuMemFree_v2(unsigned long memory) { return memory == 0; }
"#;
/// Does what lines of input say, and answers with a line.
const PROGRAM: &str = r#"
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
static unsigned replacement(unsigned long *memory, unsigned long size) { *memory = 42; return size == 0; }
static void replace(unsigned char *code)
{
	uintptr_t page = (uintptr_t)code & ~(uintptr_t)0xfff;
	void *target = (void *)replacement;
	mprotect((void *)page, 0x2000, PROT_READ | PROT_WRITE | PROT_EXEC);
#if defined(__x86_64__)
	/* movabs $target, %r11; jmp *%r11 */
	memcpy(code, "\x49\xbb", 2);
	memcpy(code + 2, &target, 8);
	memcpy(code + 10, "\x41\xff\xe3", 3);
#else
	/* ldr x16, #8; br x16 */
	memcpy(code, "\x50\x00\x00\x58\x00\x02\x1f\xd6", 8);
	memcpy(code + 8, &target, 8);
	__builtin___clear_cache((char *)code, (char *)code + 16);
#endif
	mprotect((void *)page, 0x2000, PROT_READ | PROT_EXEC);
}
int main(int count, char **arguments)
{
	void *driver = dlopen(arguments[1], RTLD_NOW);
	unsigned (*launch)(unsigned long) = (unsigned (*)(unsigned long))dlsym(driver, "cuLaunchKernel");
	unsigned (*volatile allocate)(unsigned long *, unsigned long) =
		(unsigned (*)(unsigned long *, unsigned long))dlsym(driver, "cuMemAlloc_v2");
	unsigned (*release)(unsigned long) = (unsigned (*)(unsigned long))dlsym(driver, "cuMemFree_v2");
	char line[4096];
	unsigned long memory = 0;
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = 0;
		if (!strcmp(line, "replace")) {
			replace((unsigned char *)allocate);
		} else if (!strncmp(line, "calls ", 6)) {
			for (long left = atol(line + 6); left > 0; left--) {
				allocate(&memory, 7);
				release(memory);
				launch(0x5eed);
			}
		} else if (!strncmp(line, "load ", 5) && !dlopen(line + 5, RTLD_NOW)) {
			return 1;
		}
		printf("%lu ", memory);
		for (int byte = 0; byte < 8; byte++)
			printf("%02x", ((unsigned char *)allocate)[byte]);
		puts("");
		fflush(stdout);
	}
	return 0;
}
"#;

struct Program {
    child: Child,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Program {
    fn start(dir: &Path) -> Result<Self> {
        // The replacement of a function is longer than it.
        let options = ["-shared", "-fPIC", "-falign-functions=64"];
        compile(DRIVER, &dir.join("libcuda.so.1"), &options)?;
        compile(PROGRAM, &dir.join("program"), &[])?;
        let mut child = Command::new(dir.join("program"))
            .arg(dir.join("libcuda.so.1"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let answers = BufReader::new(child.stdout.take().context("piped")?).lines();
        let mut program = Self { child, answers };
        program.answers.next().context("it does not start")??;
        Ok(program)
    }

    /// The result of the last allocation, and the code of that function in memory.
    fn tell(&mut self, what: &str) -> Result<(u64, String)> {
        writeln!(self.child.stdin.as_mut().context("piped")?, "{what}")?;
        let answer = self.answers.next().context("it has ended")??;
        let (memory, code) = answer.split_once(' ').context("no answer")?;
        Ok((memory.parse()?, code.to_owned()))
    }

    fn check_calls(&self, observed: &Observed, expected: [(&str, u64); 3]) -> Result<()> {
        let process = observed.process(self.child.id())?;
        let counted = counted(&process);
        for (name, calls) in expected {
            let seen = counted.get(&op(name)).copied().unwrap_or(0);
            ensure!(seen == calls, "{name}: {seen} of {calls}");
        }
        Ok(())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn attached(observed: &Observed, dir: &Path) -> Option<LibraryStatus> {
    let is_it = |own: &LibraryStatus| {
        own.path == dir.join("libcuda.so.1") && own.verdict == LibraryVerdict::Attached
    };
    observed.status().libraries.into_iter().find(is_it)
}

#[test]
fn code_that_a_program_has_replaced_gets_no_breakpoint_and_goes_on_working() -> Result<()> {
    let dir = TempDir::new()?;
    // Probes that come between a look at the code and its replacement are another matter.
    drop(Observed::start_own(Options::default())?);
    let mut program = Program::start(dir.path())?;
    let (_, of_file) = program.tell("calls 1")?;
    let (_, replaced) = program.tell("replace")?;
    ensure!(of_file != replaced && program.tell("calls 1")?.0 == 42);
    let observed = Observed::start_own(Options::default())?;
    let library = until(|| Ok(attached(&observed, dir.path())), || "not attached".to_owned())?;
    ensure!(library.replaced == ["cuMemAlloc_v2"], "{library:?}");
    ensure!(program.tell("calls 100")? == (42, replaced));
    program.check_calls(&observed, [("cuMemAlloc", 0), ("cuMemFree", 100), ("cuLaunchKernel", 100)])
}

/// In any program: it may map the driver only when it replaces the code.
#[test]
fn a_program_that_loads_what_replaces_code_takes_the_breakpoints_from_all() -> Result<()> {
    let (dir, other_dir) = (TempDir::new()?, TempDir::new()?);
    let hooks = dir.path().join("libucm.so.0");
    compile("int ucm;", &hooks, &["-shared", "-fPIC"])?;
    let mut program = Program::start(dir.path())?;
    let mut other = Program::start(other_dir.path())?;
    let (_, of_file) = program.tell("calls 0")?;
    let observed = Observed::start_own(Options::default())?;
    let library = until(|| Ok(attached(&observed, dir.path())), || "not attached".to_owned())?;
    ensure!(library.replaced.is_empty(), "{library:?}");
    ensure!(program.tell("calls 10")? != (7, of_file.clone()), "no breakpoint");
    other.tell(&format!("load {}", hooks.display()))?;
    until(
        || Ok((program.tell("calls 0")?.1 == of_file).then_some(())),
        || "the breakpoint stays".to_owned(),
    )?;
    ensure!(program.tell("calls 10")? == (7, of_file));
    let status = attached(&observed, dir.path()).context("not attached")?;
    ensure!(status.replaced == ["cuMemAlloc_v2", "cuMemFree_v2"], "{status:?}");
    program.check_calls(&observed, [("cuMemAlloc", 10), ("cuMemFree", 10), ("cuLaunchKernel", 20)])
}
