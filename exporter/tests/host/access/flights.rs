//! `gpucause flight`: records of several nodes become one file; what goes wrong at one node keeps the others' out of nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use gpucause_fixture::server::{Running, serve, serve_idle, serve_with_flights};
use gpucause_investigations::any_format;
use tempfile::TempDir;

use super::fleet::PASSWORD;
use super::pairs::Folder;
use super::passwords::users;

fn trace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../investigations/cases/cpu-contention.db")
}

struct Nodes {
    folder: Folder,
    config: PathBuf,
    output: TempDir,
}

impl Nodes {
    fn new() -> Self {
        let folder = Folder::new();
        let config = folder.configure(&[], &users(4, &[("alice", PASSWORD)]));
        Self { folder, config, output: tempfile::tempdir().unwrap() }
    }

    fn output(&self) -> PathBuf {
        self.output.path().join("job.db")
    }

    /// Exit code, standard output, standard error.
    fn flight(&self, nodes: &[&Running], more: &[&str]) -> (Option<i32>, String, String) {
        let url = |node: &&Running| format!("https://alice@localhost:{}", node.address.port());
        let nodes: Vec<_> = nodes.iter().map(url).collect();
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpucause"));
        command.args(["flight", "--nodes", &nodes.join(",")]).args(more);
        command.arg("--ca-file").arg(self.folder.path("ca.crt")).arg("-o").arg(self.output());
        command.env("GPUCAUSE_PASSWORD", PASSWORD).env("NO_COLOR", "1");
        let Output { status, stdout, stderr } = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (status.code(), text(stdout), text(stderr))
    }

    /// The files beside the output and itself.
    fn files(&self) -> usize {
        fs::read_dir(self.output.path()).unwrap().count()
    }
}

#[test]
fn records_of_all_nodes_are_one_file_with_measured_clocks_and_each_failure_is_named() {
    let nodes = Nodes::new();
    let [one, two] = [0, 1].map(|_| serve_with_flights(&nodes.config, &trace()));
    let garbage = nodes.folder.path("garbage.db");
    fs::write(&garbage, "no database").unwrap();
    let lying = serve_with_flights(&nodes.config, &garbage);
    let off = serve(&nodes.config);
    // In the way of nothing.
    fs::write(nodes.output.path().join("job.db.0"), "of another").unwrap();
    let (code, said, warned) = nodes.flight(&[&one, &lying, &off, &two], &[]);
    assert_eq!(code, Some(1), "{said}{warned}");
    for (node, reason) in
        [(&lying, "cannot be read"), (&off, "no flight recorder runs on this node")]
    {
        let port = format!(":{}", node.address.port());
        let line = warned.lines().find(|line| line.contains(reason));
        assert!(line.is_some_and(|line| line.contains(&port)), "{reason}: {warned}");
    }
    assert!(warned.contains("2 of 4 nodes did not answer"), "{warned}");
    assert!(
        said.contains(" of 2 nodes in ") && said.contains("; next: gpucause explain --db "),
        "{said}"
    );

    let recording = any_format::open(&nodes.output()).unwrap();
    let [first, second] = recording.nodes() else { panic!("{:?}", recording.nodes()) };
    assert!(second.name.starts_with(&format!("{} (https://", first.name)), "{second:?}");
    let ahead = second.clock_ahead_ns.unwrap();
    assert!(first.clock_ahead_ns == Some(0) && ahead.abs() < 1_000_000_000, "{first:?} {second:?}");
    let causes: Vec<_> =
        recording.chains().unwrap().iter().map(|own| (own.node.0, own.chain.cause)).collect();
    let of = |node| causes.iter().filter(|(own, _)| *own == node).count();
    assert!(of(0) > 0 && of(0) == of(1), "{causes:?}");
    assert_eq!(nodes.files(), 2, "fetched records are removed");

    let (code, _, warned) = nodes.flight(&[&one], &[]);
    assert_eq!(code, Some(1));
    assert!(warned.contains("--force"), "refused before a node writes: {warned}");
    let (code, _, warned) = nodes.flight(&[&one, &two], &["--force"]);
    assert_eq!(code, Some(1));
    assert!(
        warned.contains("none of 2 nodes answered") && warned.contains("try again in"),
        "{warned}"
    );
}

#[test]
fn of_a_job_only_nodes_that_have_its_ranks_write_a_record() {
    let nodes = Nodes::new();
    let busy = serve_with_flights(&nodes.config, &trace());
    let idle = serve_idle(&nodes.config);
    let (code, said, warned) = nodes.flight(&[&busy, &idle], &["--job", "nobody"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(warned.contains("no node that answered has a rank of job nobody - "), "{warned}");
    let silent = ["--job", "nobody", "--nodes", "http://localhost:1"];
    let (code, said, warned) = nodes.flight(&[&busy, &idle], &silent);
    assert_eq!(code, Some(1), "{said}");
    let shown = "has a rank of job nobody, and 1 of 3 nodes did not answer - ";
    assert!(warned.contains(shown) && warned.contains("http://localhost:1 cannot"), "{warned}");
    let (code, said, warned) = nodes.flight(&[&busy, &idle], &["--job", "train"]);
    assert_eq!(code, Some(0), "{warned}");
    assert!(
        said.contains(" of 1 node in ") && !said.contains(&idle.address.port().to_string()),
        "{said}"
    );
}
