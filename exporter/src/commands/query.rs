//! `gpucause query`: SQL on a trace file, or on the chains of several nodes.

mod args;

use std::io::{self, Read as _, Write as _};

use anyhow::Context as _;
use gpucause_investigations::fleet;
use gpucause_investigations::json::Versioned;
use gpucause_investigations::query::{Answer, QueryLimits, csv, jsonl, query, table, tables, tsv};
use serde::Serialize;

use crate::nodes::{block_on, report};

pub(crate) use args::TABLES_AND_STATUS;
pub use args::{QueryArgs, QueryFormat};

/// Maximum bytes of standard input: a longer statement is rejected.
const MAX_INPUT: u64 = 1 << 20;

/// A node that did not answer, in JSON.
#[derive(Debug, Serialize)]
struct Failure {
    url: String,
    reason: String,
}

/// The answer of several nodes, in JSON.
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
/// When the statement is invalid or exceeds a limit, the file cannot be read, standard output is gone, or a node does not answer;
/// rows of the other nodes have been printed then.
pub fn run(args: &QueryArgs) -> anyhow::Result<()> {
    let sql = if args.sql == "-" {
        let mut sql = String::new();
        io::stdin()
            .take(MAX_INPUT)
            .read_to_string(&mut sql)
            .context("cannot read the statement from standard input")?;
        sql
    } else {
        args.sql.clone()
    };
    let rows = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let limits = QueryLimits { time: args.timeout, rows };
    match &args.db {
        Some(path) => {
            let answer = query(path, &sql, &limits)?;
            print(args, &answer, &answer)
        }
        None => of_nodes(args, &sql, &limits),
    }
}

fn of_nodes(args: &QueryArgs, sql: &str, limits: &QueryLimits) -> anyhow::Result<()> {
    args.nodes.require()?;
    let clients = args.nodes.several()?;
    let (tables, answers) = block_on(tables(sql, &clients, fleet::Limits::default()))??;
    let failed = report(&answers);
    if !answers.answers.is_empty() {
        let answer = tables.query(limits)?;
        let failures = answers.failures.iter().map(|failure| Failure {
            url: failure.url.to_string(),
            reason: failure.error.to_string(),
        });
        let clock_warnings = answers.clock_warnings();
        let whole = OfNodes { answer: &answer, failures: failures.collect(), clock_warnings };
        print(args, &answer, &whole)?;
    }
    failed
}

/// Prints the rows; `whole` is the answer in JSON.
fn print(args: &QueryArgs, answer: &Answer, whole: &impl Serialize) -> anyhow::Result<()> {
    let text = match args.format {
        QueryFormat::Table => table(answer),
        QueryFormat::Csv => csv(answer),
        QueryFormat::Tsv => tsv(answer),
        QueryFormat::Jsonl => jsonl(answer),
        QueryFormat::Json => {
            let mut text =
                serde_json::to_string(&Versioned::new(whole)).context("the answer is not JSON")?;
            text.push('\n');
            text
        }
    };
    io::stdout().write_all(text.as_bytes()).context("cannot print the rows")?;
    if answer.more_rows && args.format != QueryFormat::Json {
        let rows = args.limit;
        // Ignored: the rows are out.
        let _ = writeln!(
            io::stderr(),
            "more rows: only the first {rows} are shown; raise --limit, or ask for less"
        );
    }
    Ok(())
}
