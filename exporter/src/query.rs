//! `gpucause query`: SQL on a trace file.

use std::io::{self, Read as _, Write as _};

use anyhow::Context as _;
use gpucause_investigations::query::{Limits, csv, query, table};

use crate::cli::{QueryArgs, QueryFormat};

/// What is read of standard input at most, in bytes: a longer statement is refused anyhow.
const MOST_INPUT: u64 = 1 << 20;

/// Runs the statement and prints its rows.
///
/// # Errors
/// When the statement is refused, wrong, or takes too much, the file cannot be read, or standard output is gone.
pub fn run(args: &QueryArgs) -> anyhow::Result<()> {
    let sql = if args.sql == "-" {
        let mut sql = String::new();
        io::stdin()
            .take(MOST_INPUT)
            .read_to_string(&mut sql)
            .context("cannot read the statement from standard input")?;
        sql
    } else {
        args.sql.clone()
    };
    let rows = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let answer = query(&args.db, &sql, &Limits { time: args.timeout, rows })?;
    let text = match args.format {
        QueryFormat::Table => table(&answer),
        QueryFormat::Csv => csv(&answer),
        QueryFormat::Json => {
            let mut text = serde_json::to_string(&answer).context("the answer is not JSON")?;
            text.push('\n');
            text
        }
    };
    io::stdout().write_all(text.as_bytes()).context("cannot print the rows")?;
    if answer.more_rows && args.format != QueryFormat::Json {
        let rows = args.limit;
        // The rows are out; with standard error gone there is nobody to tell.
        let _ = writeln!(
            io::stderr(),
            "more rows: only the first {rows} are shown; raise --limit, or ask for less"
        );
    }
    Ok(())
}
