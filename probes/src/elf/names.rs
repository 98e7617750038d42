//! Finds traced names in a string table, in one pass over small pieces.
//!
//! Linkers share suffixes (`ncclReduce` in `pncclReduce`), so every suffix of a string may be a name.

use std::collections::HashMap;

use gpucause_abi::op::{OpId, op_of_symbol};

use super::ElfError;
use super::source::Source;

/// The meaning of a string offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TracedName {
    pub(super) op: OpId,
    /// Without the `@version` that some linkers put into `.symtab`.
    pub(super) symbol: String,
}

/// Longest name with symbol version.
const LONGEST: usize = 96;
/// Longest function name: just above the longest op with all suffixes.
const LONGEST_SYMBOL: usize = 64;
const PIECE: u64 = 64 << 10;
/// Most suffixes that look like a CUDA name: bounds the time for malicious string tables.
const MAX_LOOKUPS: u64 = 4_000_000;
const MAX_NAMES: usize = 16_384;

/// Traced names by offset in the string table.
pub(super) fn traced_names(
    source: &Source<'_>,
    offset: u64,
    size: u64,
) -> Result<HashMap<u64, TracedName>, ElfError> {
    search(source, offset, size, MAX_LOOKUPS)
}

fn search(
    source: &Source<'_>,
    offset: u64,
    size: u64,
    limit: u64,
) -> Result<HashMap<u64, TracedName>, ElfError> {
    let mut search = Search { names: HashMap::new(), lookups: 0, limit };
    // Only the end matters of a string that is longer than any name.
    source.strings((offset, size), (PIECE, LONGEST), |string, at| search.string(string, at))?;
    Ok(search.names)
}

struct Search {
    names: HashMap<u64, TracedName>,
    lookups: u64,
    limit: u64,
}

impl Search {
    fn string(&mut self, string: &[u8], at: u64) -> Result<(), ElfError> {
        let first = string.len().saturating_sub(LONGEST);
        for start in first..string.len() {
            let ending = &string[start..];
            if !looks_traced(ending) {
                continue;
            }
            let symbol = ending.split(|&b| b == b'@').next().unwrap_or(ending);
            if symbol.len() > LONGEST_SYMBOL {
                continue;
            }
            self.lookups += 1;
            if self.lookups > self.limit {
                let (what, size) = ("the list of CUDA-like names", self.lookups);
                return Err(ElfError::TooLarge { what, size, limit: self.limit });
            }
            if self.names.len() >= MAX_NAMES {
                let (what, limit) = ("the list of names of traced functions", MAX_NAMES as u64);
                return Err(ElfError::TooLarge { what, size: limit + 1, limit });
            }
            let Ok(symbol) = std::str::from_utf8(symbol) else { continue };
            if let Some(op) = op_of_symbol(symbol) {
                self.names.insert(at + start as u64, TracedName { op, symbol: symbol.to_owned() });
            }
        }
        Ok(())
    }
}

/// Cheap check of the first bytes: ops have an API prefix and a capital letter.
fn looks_traced(name: &[u8]) -> bool {
    let rest = match name {
        [b'c', b'u', b'd', b'a', rest @ ..]
        | [b'c', b'u', rest @ ..]
        | [b'n', b'c', b'c', b'l', rest @ ..]
        | [b'p', b'n', b'c', b'c', b'l', rest @ ..] => rest,
        _ => return false,
    };
    rest.first().is_some_and(u8::is_ascii_uppercase)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpucause_abi::op::OPS;
    use std::fs::File;
    use std::io::Write;

    fn file_of(table: &[u8]) -> File {
        let mut file: File = tempfile::tempfile().unwrap();
        file.write_all(table).unwrap();
        file
    }

    fn names_of(table: &[u8]) -> HashMap<u64, TracedName> {
        let file = file_of(table);
        traced_names(&Source::new(&file).unwrap(), 0, table.len() as u64).unwrap()
    }

    fn symbol_at(names: &HashMap<u64, TracedName>, offset: usize) -> Option<&str> {
        names.get(&(offset as u64)).map(|name| name.symbol.as_str())
    }

    #[test]
    fn every_op_passes_the_cheap_look() {
        for op in OPS {
            assert!(looks_traced(op.name.as_bytes()), "{}", op.name);
            assert!(op.name.len() + "_v2_ptsz".len() <= LONGEST_SYMBOL, "{}", op.name);
        }
    }

    #[test]
    fn a_name_may_be_the_end_of_another() {
        let names = names_of(b"\0pncclReduce\0xcudaFree\0");
        assert_eq!(symbol_at(&names, 1), Some("pncclReduce"));
        assert_eq!(symbol_at(&names, 2), Some("ncclReduce"));
        assert_eq!(symbol_at(&names, 14), Some("cudaFree"));
        assert_eq!(names.len(), 3);
    }

    #[test]
    fn a_version_in_the_name_is_cut_off() {
        let names = names_of(b"\0cudaFree@@libcudart.so.12\0cuInit@V1\0");
        assert_eq!(symbol_at(&names, 1), Some("cudaFree"));
        assert_eq!(symbol_at(&names, 27), Some("cuInit"));
    }

    #[test]
    fn names_across_pieces_are_found_where_they_are() {
        let name = b"cudaLaunchKernel\0";
        for before in (PIECE as usize - 20)..(PIECE as usize + 3) {
            for filler in [b'x', 0] {
                let mut table = vec![filler; before];
                table.push(0);
                table.extend_from_slice(name);
                let names = names_of(&table);
                assert_eq!(symbol_at(&names, before + 1), Some("cudaLaunchKernel"), "{before}");
                assert_eq!(names.len(), 1);
            }
        }
    }

    #[test]
    fn an_unterminated_name_is_no_name() {
        assert!(names_of(b"\0cudaFree").is_empty());
    }

    #[test]
    fn a_table_made_to_be_slow_is_refused() {
        let table = [b"cuA".repeat(30), vec![0]].concat().repeat(100);
        let file = file_of(&table);
        let source = Source::new(&file).unwrap();
        let read = |limit| search(&source, 0, table.len() as u64, limit);
        assert!(matches!(read(2099), Err(ElfError::TooLarge { .. })));
        assert_eq!(read(2100).unwrap(), HashMap::new());
    }
}
