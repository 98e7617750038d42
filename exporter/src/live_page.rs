//! The page at `/` for those without Grafana: whether processes are observed, causal chains, processes, a timeline and flight records.
//! The server renders all of it, so that it needs no script; `live.js` replaces its sections by newer ones. It is made of what the
//! engine keeps for its evaluations anyway, when somebody requests it.

mod html;
mod processes;
mod table;
mod timeline;
mod view;

use gpucause_engine::activity::TimelinePoint;
use gpucause_engine::chain::Chain;
use gpucause_engine::observation::ObservationState;

pub use crate::time_shares::Parts;
pub use processes::{ProcessRow, Processes};
pub(crate) use view::View;

use crate::flights::FlightFile;

/// The script.
pub(crate) const SCRIPT: &str = include_str!("live_page/live.js");
/// The style sheet.
pub(crate) const STYLE: &str = gpucause_investigations::html::STYLE;

/// The last thing that went wrong in the daemon.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// When, in seconds since the Unix epoch.
    pub at: f64,
    /// The problem in words.
    pub what: String,
}

/// The part of the page that everybody sees.
#[derive(Debug)]
pub(crate) struct Head<'a> {
    /// Name of the host.
    pub(crate) node: &'a str,
    /// The trace file that is shown, if it is one.
    pub(crate) file: Option<&'a str>,
    /// The path of the metrics.
    pub(crate) telemetry_path: &'a str,
    pub(crate) observation: &'a ObservationState,
}

/// The part of the page for readers who may see causal chains.
#[derive(Debug, Default)]
pub(crate) struct Body {
    pub(crate) processes: Processes,
    /// The worst first.
    pub(crate) chains: Vec<Chain>,
    /// Oldest first.
    pub(crate) timeline: Vec<TimelinePoint>,
    /// The files of the flight recorder, newest first; `None` where there is none.
    pub(crate) flights: Option<Vec<FlightFile>>,
    pub(crate) problem: Option<Problem>,
    /// In seconds since the Unix epoch.
    pub(crate) now: f64,
}

/// Why the body is left out.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Hidden<'a> {
    /// The client has not logged in; the file of this host's token, if there is one.
    NoCredentials(Option<&'a str>),
    /// Another site led here: the script requests the page again by itself.
    OtherSite,
}

/// The page as HTML.
pub(crate) fn page(head: &Head<'_>, body: Result<&Body, Hidden<'_>>, view: &View) -> String {
    let mut out = String::with_capacity(32 << 10);
    // Writing to a String cannot fail.
    let _ = html::write(&mut out, head, body, view);
    out
}

/// The path under which a flight record is downloaded.
pub(crate) const FLIGHTS: &str = "/flight-records/";

#[cfg(test)]
mod tests;
