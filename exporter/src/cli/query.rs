//! `gpucause query`: SQL on a trace file, or on what several nodes tell.

use std::io::{self, Read as _, Write as _};

use anyhow::Context as _;
use gpucause_investigations::fleet;
use gpucause_investigations::query::{Answer, Limits, csv, query, table, tables};
use serde::Serialize;

use crate::cli::{QueryArgs, QueryFormat};
use crate::nodes::{asked, report};

/// What is read of standard input at most, in bytes: a longer statement is refused anyhow.
const MOST_INPUT: u64 = 1 << 20;

/// A node that did not answer, in JSON.
#[derive(Debug, Serialize)]
struct Failure {
    url: String,
    reason: String,
}

/// An answer of nodes, in JSON.
#[derive(Debug, Serialize)]
struct OfNodes<'a> {
    #[serde(flatten)]
    answer: &'a Answer,
    failures: Vec<Failure>,
    clock_warnings: Vec<String>,
}

/// Runs the statement and prints its rows.
///
/// # Errors
/// When the statement is refused, wrong, or takes too much, the file cannot be read, a node does not answer, or standard output
/// is gone. Rows of what other nodes told have been printed.
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
    let limits = Limits { time: args.timeout, rows };
    match &args.db {
        Some(path) => {
            let answer = query(path, &sql, &limits)?;
            print(args, &answer, &answer)
        }
        None => of_nodes(args, &sql, &limits),
    }
}

fn of_nodes(args: &QueryArgs, sql: &str, limits: &Limits) -> anyhow::Result<()> {
    let clients = args.nodes.several()?;
    let (tables, told) = asked(tables(&clients, fleet::Limits::default()))??;
    let failed = report(&told);
    if !told.answers.is_empty() {
        let answer = tables.query(sql, limits)?;
        let failures = told.failures.iter().map(|failure| Failure {
            url: failure.url.to_string(),
            reason: failure.error.to_string(),
        });
        let clock_warnings = told.clock_warnings();
        let whole = OfNodes { answer: &answer, failures: failures.collect(), clock_warnings };
        print(args, &answer, &whole)?;
    }
    failed
}

/// Prints the rows; `whole` is what is told in JSON.
fn print(args: &QueryArgs, answer: &Answer, whole: &impl Serialize) -> anyhow::Result<()> {
    let text = match args.format {
        QueryFormat::Table => table(answer),
        QueryFormat::Csv => csv(answer),
        QueryFormat::Json => {
            let mut text = serde_json::to_string(whole).context("the answer is not JSON")?;
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
