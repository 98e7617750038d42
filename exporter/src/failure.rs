//! The error of a command that ends: `error: what - what to do`, once, on standard error. Daemons log theirs.

use std::fmt;
use std::io::{self, ErrorKind, Write as _};

use gpucause_investigations::untrusted_text::is_control;

use crate::file_limits;
use crate::privileges::is_root;

/// Between what is wrong and what to do. Messages of errors have it where they say both.
const SEPARATOR: &str = " - ";
/// Below `error: `.
const INDENT: &str = "\n       ";

/// Advice for an error whose own message has none.
#[derive(Debug, Clone, Copy)]
pub struct Advice(pub &'static str);

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// A combination of flags that the command does not accept.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// Prints the error, in colour on a terminal.
pub fn print(error: &anyhow::Error) {
    // Ignored: the exit code remains.
    let _ = writeln!(anstream::stderr(), "\x1b[1;31merror:\x1b[0m {}", text(error));
}

/// Returns what is wrong and what to do, each once. The text has names and answers of others, so characters that control a terminal are
/// replaced.
#[must_use]
pub fn text(error: &anyhow::Error) -> String {
    let own = error.downcast_ref::<Advice>().map(|advice| advice.0);
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        // Messages may have their cause already, and SQLite's say what their code means.
        let is_code = cause.starts_with("Error code ") && !text.is_empty();
        if Some(&*cause) == own || text.contains(&cause) || is_code {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause);
    }
    let is_advised = text.contains(SEPARATOR);
    // Also where what libbpf says has a dash in it.
    let advice = file_limits::advice(&text).or_else(|| {
        let other = own.or_else(|| usual(error, is_root()));
        other.filter(|_| !is_advised).map(str::to_owned)
    });
    if let Some(advice) = advice {
        text.push_str(SEPARATOR);
        text.push_str(&advice);
    }
    let printable: String =
        text.chars().map(|c| if is_control(c) && c != '\n' { '?' } else { c }).collect();
    printable.trim_end().replace('\n', INDENT)
}

/// Returns the text of the error as a line of a log.
#[must_use]
pub fn line(error: &anyhow::Error) -> String {
    text(error).replace(INDENT, "; ")
}

/// Returns true if the reader of standard output, such as `head`, has ended: it has what it wanted.
#[must_use]
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let kernel = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
    kernel.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// Returns advice that usually helps against an error of the kernel.
fn usual(error: &anyhow::Error, is_root: bool) -> Option<&'static str> {
    let kernel = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>())?;
    match kernel.kind() {
        ErrorKind::NotFound => Some("check the path"),
        ErrorKind::PermissionDenied if is_root => {
            Some("root may not either: see the mount, and the capabilities of the container")
        }
        ErrorKind::PermissionDenied => Some("run the command as root, or as the owner"),
        ErrorKind::AlreadyExists => Some("name another file, or remove that one"),
        ErrorKind::StorageFull => Some("free some space, or write to another file system"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::{Context as _, anyhow};

    #[test]
    fn what_to_do_comes_last_and_once() {
        let error = || anyhow!("no such process").context("cannot observe");
        assert_eq!(text(&error()), "cannot observe: no such process");
        let advised = error().context(Advice("see ps"));
        assert_eq!(text(&advised), "cannot observe: no such process - see ps");
        let outer = advised.context("top failed");
        assert_eq!(text(&outer), "top failed: cannot observe: no such process - see ps");
        let own = anyhow!("the file exists - use --force").context(Advice("see ps"));
        assert_eq!(text(&own), "the file exists - use --force");
    }

    #[test]
    fn an_error_of_the_kernel_gets_the_usual_advice() {
        let missing = std::fs::read("/nonexistent/trace.db").context("cannot read the trace");
        let text = text(&missing.unwrap_err());
        assert!(text.starts_with("cannot read the trace: No such file"), "{text}");
        assert!(text.ends_with(" - check the path"), "{text}");
    }

    #[test]
    fn root_is_not_advised_to_become_root() {
        let denied = anyhow::Error::from(io::Error::from(ErrorKind::PermissionDenied));
        assert!(!usual(&denied, true).unwrap().contains("as root"));
        assert!(usual(&denied, false).unwrap().contains("as root"));
    }

    #[test]
    fn only_a_reader_that_has_ended_is_a_closed_pipe() {
        let of = |kind: ErrorKind| anyhow::Error::from(io::Error::from(kind)).context("x");
        assert!(is_closed_pipe(&of(ErrorKind::BrokenPipe)));
        assert!(!is_closed_pipe(&of(ErrorKind::StorageFull)) && !is_closed_pipe(&anyhow!("x")));
    }

    #[test]
    fn a_cause_that_the_message_has_is_not_repeated() {
        let cause = std::io::Error::other("disk failed");
        let error = anyhow::Error::from(cause).context("cannot write x: disk failed");
        assert_eq!(text(&error), "cannot write x: disk failed");
    }

    #[test]
    fn an_error_does_not_control_the_terminal() {
        let error = anyhow!("the node answered \u{1b}[2J\u{9b}1m\nerror: other\n");
        assert_eq!(text(&error), "the node answered ?[2J?1m\n       error: other");
        assert_eq!(line(&error), "the node answered ?[2J?1m; error: other");
    }
}
