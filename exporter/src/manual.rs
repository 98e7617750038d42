//! Shell completions and manual pages, generated from the command line.

use std::io;
use std::path::Path;

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::cli::Cli;

/// Name of the program, as shells know it.
const NAME: &str = "gpucause";

/// A shell's completion script.
#[must_use]
pub fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), NAME, &mut script);
    script
}

/// The manual page of the program.
///
/// # Errors
/// None in practice: it is written to memory.
pub fn page() -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(Cli::command().disable_help_subcommand(true)).render(&mut page)?;
    Ok(page)
}

/// Writes that page and one for each command to a folder, which is created if it is missing.
///
/// # Errors
/// When a file cannot be written.
pub fn write_pages(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    clap_mangen::generate_to(Cli::command(), folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_know_commands_and_flags() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = String::from_utf8(completions(shell)).unwrap();
            assert!(
                script.contains("exporter") && script.contains("web.listen-address"),
                "{shell}"
            );
        }
    }

    #[test]
    fn there_is_a_page_for_the_program_and_each_command() {
        let folder = tempfile::tempdir().unwrap();
        let pages = folder.path().join("man1");
        write_pages(&pages).unwrap();
        for command in Cli::command().get_subcommands() {
            let page = pages.join(format!("{NAME}-{}.1", command.get_name()));
            assert_eq!(page.exists(), !command.is_hide_set(), "{}", page.display());
        }
        let own = std::fs::read(pages.join("gpucause.1")).unwrap();
        assert_eq!(own, page().unwrap());
        let exporter = std::fs::read_to_string(pages.join("gpucause-exporter.1")).unwrap();
        for part in ["config.file", "SIGUSR1", "Exit status"] {
            assert!(exporter.contains(part), "{part}: {exporter}");
        }
        let explain = std::fs::read_to_string(pages.join("gpucause-explain.1")).unwrap();
        assert!(explain.contains("3   Not observed"), "{explain}");
    }
}
