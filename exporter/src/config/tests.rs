//! Valid and invalid configurations, and the messages.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::time::Duration;

use gpucause_abi::op::op_of_symbol;
use gpucause_engine::chain::Cause;
use gpucause_input::document::typed;
use gpucause_observe::series::process_filter::{Matcher, Pattern};
use proptest::prelude::*;

use super::*;

const EXAMPLE: &str = include_str!("../../../systemd/config.yaml");

/// Returns the problems of an invalid text, each with its line.
fn problems(text: &str) -> Vec<String> {
    let complaints = Config::parse(text).expect_err(text);
    complaints.iter().map(ToString::to_string).collect()
}

/// Keys that lead to values, with dots between.
fn keys(value: &serde_json::Value, path: &str, keys: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(entries) if !entries.is_empty() => {
            for (key, value) in entries {
                self::keys(value, &format!("{path}.{key}"), keys);
            }
        }
        _ => {
            keys.insert(path.to_owned());
        }
    }
}

#[test]
fn nothing_said_is_the_defaults() {
    for text in
        ["", "# nothing\n", "---\n", "{}", "chains:\nlimits:\n  # wait_names: 3\nlaunch_ops:\n"]
    {
        assert_eq!(Config::parse(text).unwrap(), Config::default(), "{text}");
    }
    assert_eq!(Config::default().series(), SeriesSettings::default());
}

#[test]
fn an_unknown_level_is_refused_with_the_known_ones() {
    let problems = |text| problems(text).join("\n");
    let level = problems("metrics: {level: all}");
    assert!(
        level.contains("metrics.level is \"all\", and must be fleet, standard or full"),
        "{level}"
    );
    let buckets = problems("metrics: {classic_buckets: never}");
    assert!(buckets.contains("must be auto or always"), "{buckets}");
    let unknown = problems("metrics: {group_by: [comm, user]}");
    assert!(
        unknown.contains("is \"user\", and must be comm, or gpu_uuid behind comm"),
        "{unknown}"
    );
    let unsupported = problems("metrics: {group_by: [gpu_uuid]}");
    assert!(unsupported.contains("must be [], [comm] or [comm, gpu_uuid]"), "{unsupported}");
    let zero = problems("limits: {series_per_process: 0}");
    assert!(zero.contains("must be from 40 to 100000"), "{zero}");
    assert!(Config::parse("metrics: {group_by: [comm, gpu_uuid]}").is_ok());
    let full = Config::parse("metrics: {level: full, classic_buckets: always}").unwrap();
    assert_eq!(full.metrics.level, Level::Full);
}

#[test]
fn the_example_says_every_default_and_nothing_else() {
    let example = Config::parse(EXAMPLE).unwrap();
    assert_eq!(example, Config::default());
    let (mut said, mut known) = (BTreeSet::new(), BTreeSet::new());
    keys(&typed(EXAMPLE).unwrap(), "", &mut said);
    keys(&serde_json::to_value(Config::default()).unwrap(), "", &mut known);
    assert_eq!(said, known);
}

#[test]
fn what_the_comments_of_the_example_suggest_is_valid() {
    let text: String = EXAMPLE
        .lines()
        .map(|line| match line.split_once("#  ") {
            Some(("  ", rest)) => format!("     {rest}\n"),
            _ => format!("{}\n", line.replace("[]", "").replace("{}", "")),
        })
        .collect();
    let config = Config::parse(&text).unwrap();
    assert_eq!(config.processes.include.len(), 2);
    assert_eq!(config.processes.exclude.len(), 1);
    assert!(!config.chains.rule(Cause::ColdStart).enabled);
    assert_eq!(config.chains.rule(Cause::CpuPreemption).min_lost_share, Some(0.05));
}

#[test]
fn what_is_said_is_taken() {
    let config = Config::parse(
        "retention: 1h30m\n\
         launch_ops: [cudaLaunchKernel, cuMemcpyAsync]\n\
         processes: {include: [{comm: '3', user: \"ml\"}]}\n\
         limits: {wait_names: 3}\n\
         probe: {enabled: false, budget: 0.5%}\n\
         chains:\n  min_spread: 7\n  rules: {cpu_preemption: {enabled: false}}\n",
    )
    .unwrap();
    assert_eq!(config.retention.0, Duration::from_secs(5400));
    let ops: Vec<_> = ["cudaLaunchKernel", "cuMemcpyAsync"].map(op_of_symbol).into();
    assert_eq!(config.chains.launch_ops, config.launch_ops.0);
    assert_eq!(config.launch_ops.0.iter().map(Some).collect::<Vec<_>>(), ops);
    assert!(config.processes.include[0].comm.as_ref().unwrap().matches("3"));
    assert_eq!(config.limits, Limits { wait_names: 3, ..Limits::default() });
    assert_eq!(config.chains.min_spread, 7.0);
    assert_eq!((config.probe.enabled, config.probe.budget.0), (false, Some(0.005)));
    for (text, budget) in [("off", None), ("0.02", Some(0.02)), ("1", Some(1.0))] {
        let config = Config::parse(&format!("probe:\n  budget: {text}")).unwrap();
        assert_eq!(config.probe.budget.0, budget, "{text}");
    }
    assert!(!config.chains.rule(Cause::CpuPreemption).enabled);
}

/// Texts, and what is said of them.
const REFUSALS: &[(&str, &str)] = &[
    ("foo", "line 1: the file is \"foo\", and must be a section: keys with values"),
    ("[1]", "line 1: the file is a list, and must be a section: keys with values"),
    (
        "\nretention: soon",
        "line 2: retention is \"soon\", and must be a duration: numbers with units ms, s, m, h or d, such as 90s or 1h30m",
    ),
    (
        "retention: 300",
        "line 1: retention is \"300\", and must be a duration: numbers with units ms, s, m, h or d, such as 90s or 1h30m",
    ),
    (
        "probe: {budget: 3}",
        "line 1: probe.budget is \"3\", and must be a share of a thread's time above 0 and up to 1, such as 2% or 0.02, or off for no limit",
    ),
    ("probe: {enabled: 1}", "line 1: probe.enabled is 1, and must be true or false"),
    ("retention:", "line 1: retention is empty, and must be text"),
    ("retention: [5m]", "line 1: retention is a list, and must be text"),
    (
        "retension: 5m",
        "line 1: the file has no key retension (did you mean retention?); it has chains, launch_ops, processes, retention, limits, probe, metrics, otlp, peers",
    ),
    (
        "limits:\n  wait_names: ten",
        "line 2: limits.wait_names is \"ten\", and must be a whole number from 0 up",
    ),
    (
        "limits:\n  wait_names: -1",
        "line 2: limits.wait_names is -1, and must be a whole number from 0 up",
    ),
    (
        "limits:\n  wait_names: 1.5",
        "line 2: limits.wait_names is 1.5, and must be a whole number from 0 up",
    ),
    ("limits:\n  wait_names: 0", "line 2: limits.wait_names is 0, and must be from 1 to 100"),
    (
        "limits: {exited_processes: 5000}",
        "line 1: limits.exited_processes is 5000, and must be from 0 to 2048",
    ),
    (
        "limits: {live_processes: 0}",
        "line 1: limits.live_processes is 0, and must be from 1 to 8192",
    ),
    ("limits: {scrapes: 0}", "line 1: limits.scrapes is 0, and must be from 1 to 16"),
    (
        "otlp: {spool_bytes: 1000}",
        "line 1: otlp.spool_bytes is 1000, and must be from 1048576 to 1073741824",
    ),
    (
        "otlp:\n  endpoint: http://me:secret@h:4318",
        "line 2: otlp.endpoint is invalid, and must be http://HOST:PORT or https://HOST:PORT, without user and password: a login is a line in the file of otlp.headers_file or --otlp.headers-file",
    ),
    (
        "peers:\n  url: http://me:secret@h:9090",
        "line 2: peers.url is refused: other users of this host can see a password in an address - write https://USER@HOST:PORT, and set it with --peers.password-file or peers.password_file",
    ),
    ("limits: {connections: 0}", "line 1: limits.connections is 0, and must be from 1 to 65536"),
    ("limits: 5", "line 1: limits is 5, and must be a section: keys with values"),
    ("limits: [a]", "line 1: limits is a list, and must be a section: keys with values"),
    (
        "launch_ops: cudaLaunchKernel",
        "line 1: launch_ops is \"cudaLaunchKernel\", and must be a list, as in [a, b]",
    ),
    (
        "launch_ops:\n- cudaLaunchKernel\n- cudaLaunchkernal",
        "line 3: launch_ops[1] is \"cudaLaunchkernal\", and must be the name of an operation as in the op label, such as cudaLaunchKernel; did you mean cudaLaunchKernel?",
    ),
    (
        "launch_ops: [cuMemcpyAsync_ptsz]",
        "line 1: launch_ops[0] is \"cuMemcpyAsync_ptsz\", and must be the name of an operation as in the op label, such as cudaLaunchKernel; did you mean cuMemcpyAsync?",
    ),
    ("launch_ops: []", "line 1: launch_ops is empty, and must have at least one operation"),
    (
        "launch_ops: [x]",
        "line 1: launch_ops[0] is \"x\", and must be the name of an operation as in the op label, such as cudaLaunchKernel",
    ),
    (
        "processes:\n  include:\n    - comm: 'a('",
        "line 3: processes.include[0].comm is \"a(\", and must be a regular expression: unclosed group",
    ),
    (
        "processes:\n  exclude:\n    - comm: 'a{1000}{1000}'",
        "line 3: processes.exclude[0].comm is \"a{1000}{1000}\", and must be a regular expression: it is too large",
    ),
    (
        "processes: {include: [{}]}",
        "line 1: processes.include[0] is empty, and must have at least one of comm, exe, cgroup and user",
    ),
    (
        "processes: {include: [python]}",
        "line 1: processes.include[0] is \"python\", and must be a section: keys with values",
    ),
    (
        "processes: {exclude: [{pid: 1}]}",
        "line 1: processes.exclude[0] has no key pid; it has comm, exe, cgroup, user",
    ),
    (
        "chains:\n  explained_share: two",
        "line 2: chains.explained_share is \"two\", and must be a number",
    ),
    (
        "chains:\n  explained_share: 2",
        "line 2: chains.explained_share is 2, and must be from 0 to 1",
    ),
    (
        "chains:\n  explained_share: .nan",
        "line 2: chains.explained_share is NaN, and must be from 0 to 1",
    ),
    (
        "chains: {hang_seconds: 0}",
        "line 1: chains.hang_seconds is 0, and must be a number of seconds above 0 and below a million",
    ),
    ("chains: {min_spread: 0.5}", "line 1: chains.min_spread is 0.5, and must be at least 1"),
    ("chains: {max_chains: 0}", "line 1: chains.max_chains is 0, and must be from 1 to 100000"),
    (
        "chains:\n  severities: {low: 0.3}",
        "line 2: chains.severities are low 0.3, medium 0.1, high 0.25 and critical 0.5, and must not descend",
    ),
    (
        "chains:\n  rules:\n    cpu_preemption:\n      enabled: yes",
        "line 4: chains.rules.cpu_preemption.enabled is \"yes\", and must be true or false",
    ),
    (
        "chains:\n  rules:\n    cpu_preemption:\n      min_lost_share: 3",
        "line 4: chains.rules.cpu_preemption.min_lost_share is 3, and must be from 0 to 1",
    ),
    ("a: 1\na: 2", "line 2: a is given twice, and must be given once"),
    ("a: 1\n---\na: 2", "line 3: a second document begins; a configuration has one document"),
    ("a: b: c", "line 1: not valid YAML: mapping values are not allowed in this context"),
    ("<<: {a: 1}", "line 1: not valid YAML: YAML merge keys are not allowed by configured policy"),
    ("{", "line 1: not valid YAML: unclosed bracket '{'"),
];

#[test]
fn every_refusal_names_line_key_value_and_accepted_form() {
    for (text, expected) in REFUSALS {
        assert_eq!(problems(text), [*expected], "{text:?}");
    }
}

#[test]
fn an_unknown_cause_is_reported_with_the_known_ones() {
    let problem = &problems("chains:\n  rules:\n    cpu_preemtion: {}")[0];
    let begin = "line 3: chains.rules has no key cpu_preemtion (did you mean cpu_preemption?); it has cpu_preemption, ";
    assert!(problem.starts_with(begin), "{problem}");
}

#[test]
fn all_errors_of_a_file_are_reported_at_once_in_its_order() {
    let text = "\
chains: {explained_share: 2, hang_secs: 5}
limits:
  scrapes: 99
  wait_names: ten
processes:
  include: [{comm: 'a('}, {pid: 1}, {comm: b}, {}]
retension: 5m
launch_ops: [x, cudaLaunchKernel, cudaLaunchkernal]
";
    let problems = problems(text);
    let begins = [
        "line 1: chains.explained_share is 2, and must be from 0 to 1",
        "line 1: chains has no key hang_secs (did you mean hang_seconds?)",
        "line 3: limits.scrapes is 99, and must be from 1 to 16",
        "line 4: limits.wait_names is \"ten\", and must be a whole number",
        "line 6: processes.include[0].comm is \"a(\", and must be a regular expression",
        "line 6: processes.include[1] has no key pid",
        "line 6: processes.include[3] is empty, and must have",
        "line 7: the file has no key retension (did you mean retention?)",
        "line 8: launch_ops[0] is \"x\", and must be",
        "line 8: launch_ops[2] is \"cudaLaunchkernal\", and must be",
    ];
    assert_eq!(problems.len(), begins.len(), "{problems:#?}");
    for (problem, begin) in problems.iter().zip(begins) {
        assert!(problem.starts_with(begin), "{problem}: not {begin}");
    }
}

#[test]
fn what_follows_a_refused_item_of_a_list_has_its_own_index_and_line() {
    let empty = "is empty, and must have at least one of comm, exe, cgroup and user";
    let form = "must be a section: keys with values";
    for (items, expected) in [
        ("[5, {}]", vec![(0, format!("is 5, and {form}")), (1, empty.into())]),
        (
            "[5, {comm: a}, {}, x, {}]",
            vec![
                (0, format!("is 5, and {form}")),
                (2, empty.into()),
                (3, format!("is \"x\", and {form}")),
                (4, empty.into()),
            ],
        ),
    ] {
        let items = items.replace("[", "\n    - ").replace(", ", "\n    - ").replace("]", "");
        let found = problems(&format!("processes:\n  include:{items}"));
        let line = |(index, problem): (usize, String)| {
            format!("line {}: processes.include[{index}] {problem}", index + 3)
        };
        assert_eq!(found, expected.into_iter().map(line).collect::<Vec<_>>());
    }
}

#[test]
fn what_only_follows_from_another_error_is_not_reported() {
    for text in [
        "launch_ops: [x]",
        "processes: {include: [{comm: 'a('}]}",
        "processes: {include: [{pid: 1}]}",
        "chains: {severities: {low: two, medium: 0.01}}",
        "metrics: {group_by: [pod, gpu_uuid]}",
    ] {
        assert_eq!(problems(text).len(), 1, "{text}: {:#?}", problems(text));
    }
}

#[test]
fn a_file_with_very_many_errors_is_refused_at_once() {
    let text = format!("launch_ops: [{}]", "x, ".repeat(20_000));
    let begin = cpu_time();
    let problems = problems(&text);
    let taken = cpu_time().saturating_sub(begin);
    assert_eq!(problems.len(), 51);
    assert_eq!(problems[0], "these are the first 50 errors; there may be more");
    assert!(taken < Duration::from_secs(10), "{taken:?}");
}

#[test]
fn an_unreadable_file_is_reported_with_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let link = dir.path().join("link");
    symlink("nowhere", &link).unwrap();
    let pipe = dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (path, part) in [
        (dir.path().join("missing"), "No such file"),
        (link, "No such file"),
        (dir.path().to_owned(), "not a file"),
        (pipe, "not a file"),
        (file("latin", b"retention: \xe9"), "not UTF-8"),
        (file("huge", &vec![b'#'; 1 << 21]), "larger than 1 MiB"),
    ] {
        let error = load(&path).unwrap_err().to_string();
        assert!(error.starts_with(path.to_str().unwrap()) && error.contains(part), "{error}");
    }
    let wrong = file("wrong", b"\nlimits: {scrapes: 0, wait_names: 0}");
    let error = load(&wrong).unwrap_err().to_string();
    let path = wrong.display();
    assert_eq!(
        error,
        format!(
            "{path}:2: limits.scrapes is 0, and must be from 1 to 16\n\
             {path}:2: limits.wait_names is 0, and must be from 1 to 100"
        )
    );
}

/// Text that is nearly a configuration.
fn nearly_yaml() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        "(chains|limits|retention|launch_ops|processes|include|exclude|rules|comm|severities|low): ?",
        "[ \n\t]{1,4}",
        "(- |\\[|\\]|\\{|\\}|, |&a|\\*a|\\? |! |!!str|\"|'|\\||>|#|---|<<: )",
        "[-+.0-9a-zA-Z_]{1,8}",
        "\\PC{1,3}",
    ];
    prop::collection::vec(part, 0..40).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn any_text_is_accepted_or_rejected_with_errors(text in prop_oneof![nearly_yaml(), "\\PC*"]) {
        if let Err(complaints) = Config::parse(&text) {
            prop_assert!(!complaints.is_empty());
            for complaint in complaints {
                prop_assert!(complaint.problem.len() > 5, "{complaint}");
            }
        }
    }

    #[test]
    fn any_bytes_of_a_file_are_accepted_or_rejected_with_errors(bytes: Vec<u8>) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &bytes).unwrap();
        if let Err(error) = load(file.path()) {
            prop_assert!(error.to_string().starts_with(file.path().to_str().unwrap()));
        }
    }

    #[test]
    fn what_is_taken_can_be_written_down_and_taken_again(
        share in 0.0..=1.0, names in 1usize..=100, milliseconds in 0u64..1 << 40, comm in "[a-z.*]{1,5}",
    ) {
        let mut config = Config::default();
        config.chains.explained_share = share;
        config.limits.wait_names = names;
        config.retention = Span(Duration::from_millis(milliseconds));
        config.processes.exclude = match Pattern::new(&comm) {
            Ok(pattern) => vec![Matcher { comm: Some(pattern), ..Matcher::default() }],
            Err(_) => vec![],
        };
        let json = serde_json::to_string(&config).unwrap();
        prop_assert_eq!(Config::parse(&json).unwrap(), config);
    }
}

/// Returns the CPU time of this thread: other load on the host does not count.
fn cpu_time() -> Duration {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

#[test]
fn nesting_and_aliases_without_end_are_refused_at_once() {
    let bomb: String = (1..30)
        .map(|n| format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 9].join(",")))
        .collect();
    for text in ["[".repeat(100_000), "{a: ".repeat(50_000), format!("a0: &a0 [1]\n{bomb}")] {
        let begin = cpu_time();
        assert_eq!(problems(&text).len(), 1);
        let taken = cpu_time().saturating_sub(begin);
        assert!(taken < Duration::from_secs(5), "{taken:?}");
    }
}
