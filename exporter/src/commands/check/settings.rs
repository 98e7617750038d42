//! Files, folders and pages in the exporter's flags: configuration, web configuration, the folder of flight records, dcgm-exporter.

use std::fs::File;
use std::iter;
use std::path::Path;

use gpucause_http::web_config::WebConfig;
use gpucause_observe::dcgm::{PageUrl, UTILIZATION_FIELDS};
use gpucause_page::foreign::PREFIX;

use super::{Point, State, remote};
use crate::config::source::{ConfigSource, Overrides};
use crate::flags::{ExporterArgs, GpuArgs};
use crate::flights;
use crate::nodes::block_on;

/// The configuration file that the packages' systemd unit names.
const PACKAGED: &str = "/etc/gpucause/config.yaml";
const CONFIG: &str = "configuration";
const WEB_CONFIG: &str = "web configuration";
const DCGM: &str = "dcgm-exporter";

/// A point for each file or folder that is named; several for a file with several errors.
pub(super) fn report(args: &ExporterArgs) -> Vec<Point> {
    let mut points = Vec::new();
    // In exporter-toolkit, an empty path means none.
    let web = args.web.config.as_deref().filter(|path| !path.as_os_str().is_empty());
    if let Some(path) = web {
        match WebConfig::load(path) {
            Ok(config) => {
                let detail = format!("{}: {config}", path.display());
                points.push(Point::ok(WEB_CONFIG, detail).required());
            }
            Err(error) => points.extend(invalid(WEB_CONFIG, &error.to_string())),
        }
    }
    points.extend(packaged(args, Path::new(PACKAGED)));
    match (args.config_source().load(), &args.config.file) {
        (Ok(config), file) => {
            points.extend(file.as_deref().map(|path| Point::ok(CONFIG, found(path)).required()));
            if !config.probe.enabled {
                let off = "probe.enabled is false, so that nothing is observed";
                let point = Point::new(State::Disabled, "probes", off);
                points.push(point.advise("set it to true in the configuration"));
            }
            points.extend(remote::otlp(&config.otlp));
            points.extend(remote::peers(&config.peers));
        }
        (Err(error), _) => points.extend(invalid(CONFIG, &error.to_string())),
    }
    points
}

/// Checks that flight records can be written, if they are on. A folder may be mounted later: that is no invalid configuration.
pub(super) fn flights(args: &ExporterArgs) -> Option<Point> {
    let settings = args.flight.settings()?;
    let folder = settings.dir.display().to_string();
    let subject = "flight recorder";
    let point = match flights::check(&settings.dir) {
        Ok(()) => Point::ok(subject, folder),
        Err(error) => Point::failed(subject, &error.to_string())
            .advise("create the folder, and make it writable for the exporter"),
    };
    Some(point.required())
}

/// The file that the exporter of the unit reads, where no other is named and this user may read it. An exporter with these flags does
/// without.
fn packaged(args: &ExporterArgs, path: &Path) -> Vec<Point> {
    if args.config.file.is_some() || File::open(path).is_err() {
        return Vec::new();
    }
    // Without the flags: their secrets are not for addresses of this file.
    let overrides = Overrides::default();
    let source = ConfigSource { file: Some(path.to_owned()), optional: false, overrides };
    let subject = format!("{CONFIG} of the unit");
    match source.load() {
        Ok(config) => {
            let named = remote::otlp(&config.otlp).into_iter().chain(remote::peers(&config.peers));
            let named = named.map(|point| Point { required: false, ..point });
            iter::once(Point::ok(subject, found(path))).chain(named).collect()
        }
        Err(error) => {
            error.to_string().lines().map(|line| Point::failed(&*subject, line)).collect()
        }
    }
}

fn found(path: &Path) -> String {
    let path_text = path.display();
    if path.exists() {
        path_text.to_string()
    } else {
        format!("{path_text} does not exist: the defaults apply")
    }
}

fn invalid(subject: &str, error: &str) -> Vec<Point> {
    error.lines().map(|line| Point::failed(subject, line).required()).collect()
}

/// Checks that the page of dcgm-exporter can be fetched, if one is set.
pub(super) fn dcgm(args: &GpuArgs) -> Option<Point> {
    let url = args.dcgm_url.as_ref()?;
    let upstream = match args.upstream() {
        Ok(upstream) => upstream?,
        Err(error) => return Some(Point::failed(DCGM, &error.to_string()).required()),
    };
    let point = match block_on(upstream.probe()) {
        Ok(Ok((families, true))) => Point::ok(DCGM, format!("{url}: {families} metrics")),
        Ok(Ok((families, false))) => without_utilization(url, families),
        Ok(Err(error)) => {
            let usual = "check that dcgm-exporter runs there, and --dcgm.url";
            let point = Point::failed(DCGM, &format!("{url}: {error}"));
            if point.advice.is_some() { point } else { point.advise(usual) }
        }
        Err(error) => Point::failed(DCGM, &format!("{error:#}")),
    };
    Some(point)
}

/// Rules, costs and dashboards know none of the page's fields.
fn without_utilization(url: &PageUrl, families: usize) -> Point {
    let names = UTILIZATION_FIELDS.map(|field| format!("{PREFIX}{field}")).join(" nor ");
    let detail = format!(
        "{url}: {families} metrics, but neither {names}: GPU utilization is missing in rules, costs and dashboards"
    );
    Point::new(State::Unsupported, DCGM, detail)
        .advise("add the field to the counters of dcgm-exporter (-f)")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::io::Write as _;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        exporter: ExporterArgs,
    }

    fn packaged_with(flags: &[&str], text: &str) -> Vec<Point> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let flags = Flags::parse_from([&["exporter"], flags].concat());
        packaged(&flags.exporter, file.path())
    }

    #[test]
    fn the_file_of_the_unit_is_checked_where_no_other_is_named_and_keeps_no_exporter_from_running()
    {
        let wrong = "metrics: {level: everything}\n";
        let [point] = &*packaged_with(&[], wrong) else { panic!("one point") };
        assert_eq!((point.state, point.required), (State::Failed, false));
        assert!(point.detail.contains("everything"), "{point:?}");
        assert_eq!(packaged_with(&[], "metrics: {level: fleet}\n")[0].state, State::Ok);
        assert_eq!(packaged_with(&["--config.file=/named.yaml"], wrong), []);
        let flags = Flags::parse_from(["exporter"]);
        assert_eq!(packaged(&flags.exporter, Path::new("/nonexistent/config.yaml")), []);
    }
}
