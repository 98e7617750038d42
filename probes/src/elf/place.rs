//! From functions to probe sites.

use gpucause_abi::op::{Abi, OpId};
use object::LittleEndian as LE;
use object::elf::{EM_AARCH64, ProgramHeader64};

use super::source::Source;
use super::{
    ElfError, Function, HOST_MACHINE, LibraryImage, ProbeSite, Prologue, arm64, file_range,
    prologue,
};

/// Converts addresses to file offsets and keeps one function per offset.
pub(super) fn place(
    source: &Source<'_>,
    segments: &[ProgramHeader64<LE>],
    mut functions: Vec<Function>,
    image: &mut LibraryImage,
) -> Result<(), ElfError> {
    // The shortest name is the documented one: `ncclReduce` before `pncclReduce`.
    functions.sort_by(|a, b| {
        (a.address, a.symbol.len(), &a.symbol).cmp(&(b.address, b.symbol.len(), &b.symbol))
    });
    let mut previous: Option<(u64, OpId)> = None;
    for Function { address, op, symbol, size } in functions {
        if let Some((_, kept)) = previous.filter(|(at, _)| *at == address) {
            image.folded += usize::from(kept != op);
            continue;
        }
        previous = Some((address, op));
        let Some((offset, available)) = file_range(segments, address) else {
            image.unplaced += 1;
            continue;
        };
        let code = source.read_upto(offset, available.min(prologue::LONGEST))?;
        if code.is_empty() {
            image.unplaced += 1;
            continue;
        }
        let (skipped, prologue) = prologue::of(&code);
        let (reserved, returns) = (0, Vec::new());
        let site = ProbeSite { op, symbol, offset: offset + skipped, reserved, returns, prologue };
        let without_step = match prologue {
            Prologue::SingleStepped if HOST_MACHINE == Some(EM_AARCH64) => {
                passage(source, (offset, available.min(size)), &site)?
            }
            _ => None,
        };
        image.sites.push(without_step.unwrap_or(site));
    }
    // Two segments may map the same bytes at different addresses.
    image.sites.sort_by_key(|site| site.offset);
    image.sites.dedup_by_key(|site| site.offset);
    Ok(())
}

/// The site at places of the function that need no single step.
fn passage(
    source: &Source<'_>,
    (offset, size): (u64, u64),
    site: &ProbeSite,
) -> Result<Option<ProbeSite>, ElfError> {
    let reads_stack = site.op.op().is_some_and(|op| op.reads_stack(Abi::Aarch64));
    if reads_stack || size > arm64::LONGEST {
        return Ok(None);
    }
    let code = source.read_upto(offset, size)?;
    Ok(arm64::passage(&code).map(|found| ProbeSite {
        offset: offset + found.entry,
        reserved: found.reserved,
        returns: found.returns.into_iter().map(|at| offset + at).collect(),
        prologue: Prologue::Emulated,
        ..site.clone()
    }))
}
