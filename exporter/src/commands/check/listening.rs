//! The addresses that the exporter listens on: whether they are free, who has them, and whether an exporter runs there.

use std::time::Duration;

use gpucause_engine::observation::{ObservationState, State as Observation};
use gpucause_http::client::Client;
use gpucause_http::port_owner::{Owner, names};
use gpucause_http::server::{BindError, Limits, ListenAddress, Server};
use gpucause_http::token_file;
use gpucause_investigations::node::{self, AskError, NodeUrl};
use gpucause_investigations::observation::sentence;
use gpucause_observe::observing::is_broken;
use tokio::time::timeout;

use super::{Point, State};
use crate::nodes::block_on;
use crate::privileges::is_root;

const TIMEOUT: Duration = Duration::from_secs(2);
const BAD_REQUEST: u16 = 400;
const UNAUTHORIZED: u16 = 401;

/// Points about one address: of the exporter that runs there, and of the port.
pub(super) fn report(address: &ListenAddress) -> Vec<Point> {
    let listen = format!("listen {address}");
    let exporter = format!("exporter {address}");
    match Server::bind(std::slice::from_ref(address), Limits::default()) {
        Ok(_) => {
            let free = Point::ok(listen, "free").required();
            if address.port() == 0 {
                return vec![free];
            }
            let none = Point::new(State::Disabled, exporter, "no exporter runs here");
            vec![
                free,
                none.advise("start it: sudo systemctl start gpucause, or sudo gpucause exporter"),
            ]
        }
        Err(BindError::InUse { owners, .. }) => in_use(address, &owners, listen, exporter),
        Err(error) => vec![Point::failed(listen, &error.to_string()).required()],
    }
}

fn in_use(
    address: &ListenAddress,
    owners: &[Owner],
    listen: String,
    exporter: String,
) -> Vec<Point> {
    let names = if owners.is_empty() { "another program".into() } else { names(owners) };
    let asked = ask(address);
    let answers = matches!(asked, Some(Answer::OfExporter(..)));
    let may_be = owners.iter().all(|owner| !owner.is_other_command());
    let is_exporter = owners.iter().any(Owner::is_exporter) || (answers && may_be);
    if !is_exporter {
        let choose = "choose a free port with --web.listen-address, or stop that program";
        let advice = match owners.is_empty() && !is_root() {
            true => format!("run gpucause check as root to see which; {choose}"),
            false => choose.to_owned(),
        };
        let detail = format!("used by {names}; 9400 is also the default port of dcgm-exporter");
        return vec![Point::new(State::Failed, listen, detail).advise(advice).required()];
    }
    let names = if owners.is_empty() { "gpucause exporter".into() } else { names };
    let port = Point::ok(listen, format!("used by {names}")).required();
    vec![port, of_exporter(asked, &names, exporter)]
}

fn of_exporter(asked: Option<Answer>, names: &str, subject: String) -> Point {
    match asked {
        Some(Answer::OfExporter(state, detail, advice)) => {
            let point = Point::new(state, subject, detail);
            Point { advice, ..point }
        }
        Some(Answer::None) => {
            let detail = format!("{names} does not answer within {TIMEOUT:?}");
            Point::new(State::Failed, subject, detail)
                .advise("see its log: journalctl -u gpucause; then restart it")
        }
        Some(Answer::Unknown(error)) => {
            let detail = format!("{names} runs; whether it observes is unknown: {error}");
            let advice = "ask it: gpucause explain --url https://USER@HOST:PORT";
            Point::ok(subject, detail).advise(advice)
        }
        None => Point::ok(subject, format!("{names} runs")),
    }
}

/// The answer of the program at an address.
enum Answer {
    /// It is an exporter: whether it observes, and what to do.
    OfExporter(State, String, Option<String>),
    /// Nothing.
    None,
    /// Something that is not understood, as over TLS.
    Unknown(String),
}

fn ask(address: &ListenAddress) -> Option<Answer> {
    let url: NodeUrl = format!("http://{}", address.local_address()?).parse().ok()?;
    let client = Client::new(url.address().clone(), None).ok()?;
    let client = client.with_token_files(token_file::candidates(url.address()));
    let asked = block_on(async { timeout(TIMEOUT, node::chains(&client)).await }).ok()?;
    let unknown = "it runs; whether it observes is unknown without";
    Some(match asked {
        Err(_) | Ok(Err(AskError::Silent(..))) => Answer::None,
        Ok(Ok(answer)) => {
            let (state, mut detail, advice) = observes(answer.observation.as_ref());
            detail.extend(answer.processes.as_deref().map(processes));
            Answer::OfExporter(state, detail, advice.map(str::to_owned))
        }
        Ok(Err(AskError::Refused(_, UNAUTHORIZED, _))) => {
            let advice = match is_root() {
                true => "the directory of its token is in its log; a container has one of its own",
                false => "run gpucause check as root",
            };
            Answer::OfExporter(State::Ok, format!("{unknown} its token"), Some(advice.to_owned()))
        }
        Ok(Err(error @ AskError::Withheld(..))) => {
            let Point { state, detail, advice, .. } = Point::failed("", &error.to_string());
            Answer::OfExporter(state, detail, advice)
        }
        Ok(Err(AskError::Refused(_, BAD_REQUEST, text))) if text.contains("https://") => {
            Answer::Unknown("it requires HTTPS".into())
        }
        Ok(Err(AskError::Unauthorized(_))) => {
            Answer::Unknown("it requires a password, which gpucause explain can send".into())
        }
        Ok(Err(error)) => Answer::Unknown(error.to_string()),
    })
}

/// The processes that an exporter of this host observes, as far as they fit on a line.
fn processes(pids: &[u32]) -> String {
    const LISTED: usize = 5;
    if pids.is_empty() {
        return "; no process has called CUDA yet".to_owned();
    }
    let name = |pid: &u32| match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(comm) => format!("{} ({pid})", comm.trim_end()),
        Err(_) => format!("PID {pid}"),
    };
    let listed: Vec<_> = pids.iter().take(LISTED).map(name).collect();
    let more = pids.len().saturating_sub(LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("; observes {}{more}", listed.join(", "))
}

fn observes(state: Option<&ObservationState>) -> (State, String, Option<&'static str>) {
    let Some(ObservationState { current, .. }) = state else {
        let detail = "this exporter is too old to report whether it observes".to_owned();
        return (State::Ok, detail, Some("upgrade it"));
    };
    let (state, advice) = match current.state {
        Observation::Attached => (State::Ok, None),
        Observation::Partial => (State::Ok, Some("see gpucause explain for what is missing")),
        Observation::Disabled if is_broken(&current.reason) => {
            (State::Failed, Some("see its log: journalctl -u gpucause -p warning"))
        }
        Observation::Disabled => {
            (State::Disabled, Some("enable the probes, or wait for its start"))
        }
    };
    (state, sentence(current), advice)
}

#[cfg(test)]
mod tests {
    use gpucause_engine::observation::Period;

    use super::*;
    use std::net::TcpListener;

    #[test]
    fn the_processes_that_are_observed_are_named() {
        let own = std::process::id();
        let comm = std::fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(processes(&[own]), format!("; observes {} ({own})", comm.trim_end()));
        assert!(processes(&[u32::MAX; 7]).ends_with("PID 4294967295 and 2 more"));
        assert_eq!(processes(&[]), "; no process has called CUDA yet");
    }

    #[test]
    fn an_exporter_that_does_not_observe_is_no_ok() {
        let point_of = |period: Period| observes(Some(&period.into()));
        let (state, detail, advice) = point_of(Period::disabled(1_700_049_600.0, "SIGUSR1"));
        assert_eq!((state, advice.is_some()), (State::Disabled, true));
        assert!(detail.starts_with("disabled since 2023-11-15 12:00:00 UTC"), "{detail}");
        assert_eq!(
            point_of(Period::disabled(0.0, "every probe is broken; the log says why")).0,
            State::Failed
        );
        assert_eq!(point_of(Period::attached(0.0)).0, State::Ok);
    }

    #[test]
    fn a_port_of_another_program_is_a_failure_that_names_it() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address: ListenAddress = taken.local_addr().unwrap().to_string().parse().unwrap();
        let [point] = &report(&address)[..] else { panic!("{address}") };
        assert!(point.required && point.state == State::Failed, "{point:?}");
        let pid = format!("(PID {})", std::process::id());
        assert!(point.detail.contains(&pid), "{point:?}");
        assert!(point.text().contains("--web.listen-address"), "{point:?}");
    }

    #[test]
    fn a_free_port_has_no_exporter() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let points = report(&free.to_string().parse().unwrap());
        let states: Vec<_> = points.iter().map(|point| point.state).collect();
        assert_eq!(states, [State::Ok, State::Disabled], "{points:?}");
    }
}
