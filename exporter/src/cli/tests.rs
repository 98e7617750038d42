use super::*;
use crate::config::Config;
use clap::CommandFactory as _;
use gpucause_abi::Tgid;
use gpucause_investigations::export;
use std::time::Duration;

pub(crate) fn exporter(arguments: &[&str]) -> Result<ExporterArgs, clap::Error> {
    let words = ["gpucause", "exporter"].into_iter().chain(arguments.iter().copied());
    match Cli::try_parse_from(words)?.command {
        Command::Exporter(args) => Ok(args),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn defaults_are_those_of_the_documentation() {
    let args = exporter(&[]).unwrap();
    assert_eq!(args.web.listen_addresses, [":9400".parse().unwrap()]);
    assert_eq!(args.web.telemetry_path.as_str(), "/metrics");
    assert_eq!(args.config_source().load().unwrap(), Config::default());
}

#[test]
fn a_flag_wins_over_the_configuration_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "retention: 1h\n").unwrap();
    let path = file.path().to_str().unwrap();
    let of_file = exporter(&["--config.file", path]).unwrap().config_source().load().unwrap();
    assert_eq!(of_file.retention.0, Duration::from_secs(3600));
    let flags = exporter(&["--config.file", path, "--retention=7s"]).unwrap();
    assert_eq!(flags.config_source().load().unwrap().retention.0, Duration::from_secs(7));
    std::fs::write(file.path(), "probe: {budget: 10%}\n").unwrap();
    let budget = |arguments: &[&str]| {
        exporter(arguments).unwrap().config_source().load().unwrap().probe.budget.0
    };
    assert_eq!(budget(&[]), Some(0.02));
    assert_eq!(budget(&["--config.file", path]), Some(0.1));
    assert_eq!(budget(&["--config.file", path, "--probe.budget=off"]), None);
    assert!(exporter(&["--probe.budget=0"]).is_err());
}

#[test]
fn an_interval_of_top_is_long_enough() {
    let top = |arguments: &[&'static str]| {
        let words = ["gpucause", "top"].into_iter().chain(arguments.iter().copied());
        Cli::try_parse_from(words).map(|cli| match cli.command {
            Command::Top(args) => args.view_options(),
            other => panic!("{other:?}"),
        })
    };
    let once = top(&["--once", "--pid", "42"]).unwrap();
    assert_eq!((once.count, once.only, once.plain), (Some(1), Some(Tgid(42)), true));
    let plain = top(&["-b", "-n", "3", "--interval", "500ms"]).unwrap();
    assert_eq!((plain.count, plain.interval), (Some(3), Duration::from_millis(500)));
    for wrong in [&["--interval", "0"][..], &["--interval=50ms"], &["-n", "0"], &["--once", "-n2"]]
    {
        assert!(top(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn what_is_exported_can_be_narrowed_down() {
    let export = |arguments: &[&'static str]| {
        let all = ["gpucause", "export", "--db=a.db", "--format=perfetto", "-o", "b.pftrace"];
        let words = all.into_iter().chain(arguments.iter().copied());
        Cli::try_parse_from(words).map(|cli| match cli.command {
            Command::Export(args) => args.selection(),
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(export(&[]).unwrap(), export::Selection::default());
    let narrow = export(&["--since=5m", "--pid", "42", "--at-least=50us"]).unwrap();
    let last = Some(Duration::from_secs(300));
    let pid = Some(42);
    let expected = export::Selection { last, pid, at_least_ns: 50_000, ..Default::default() };
    assert_eq!(narrow, expected);
    let between = export(&["--from", "1970-01-01T00:00:01Z", "--until=2.5"]).unwrap();
    let expected = (Some(1_000_000_000), Some(2_500_000_000));
    assert_eq!((between.from_ns, between.until_ns), expected);
    for wrong in
        [&["--from=soon"][..], &["--since=5m", "--from=1"], &["--at-least=5"], &["--pid=-1"]]
    {
        assert!(export(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn several_addresses_can_be_given() {
    let args = exporter(&["--web.listen-address=127.0.0.1:1", "--web.listen-address", "[::1]:2"]);
    assert_eq!(args.unwrap().web.listen_addresses.len(), 2);
}
