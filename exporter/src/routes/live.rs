//! The live page with its files, the login of a browser, and flight records.

use std::io;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use gpucause_http::server::Peer;
use gpucause_http::server::body::PageWriter;
use gpucause_http::server::reply::{HTML, JSON, Reply, TEXT, reply, with_header};
use hyper::header::{self, HeaderValue};
use hyper::{Request, StatusCode};
use tokio::sync::oneshot;

use super::access::{Refusal, may_read_chains};
use super::{Routes, Source, api};
use crate::flights::FlightRecords;
use crate::live_page::{self, Body, FLIGHTS, Head, Hidden, View};

/// Nothing is loaded from elsewhere, no script or style is inline, and no other site frames the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; form-action 'self'; \
    base-uri 'none'; frame-ancestors 'none'";
/// Where a browser logs in.
pub(super) const LOGIN: &str = "/login";
pub(super) const STYLE: &str = "/live.css";
pub(super) const SCRIPT: &str = "/live.js";

/// Returns true if a path is of the live page.
pub(super) fn is_path(path: &str) -> bool {
    matches!(path, "/" | LOGIN | STYLE | SCRIPT) || path.starts_with(FLIGHTS)
}

impl Routes {
    /// The response to one of these paths.
    pub(super) async fn live<B>(&self, request: &Request<B>, peer: Peer) -> Reply {
        let access = may_read_chains(peer, request.headers());
        match request.uri().path() {
            STYLE => file("text/css; charset=utf-8", live_page::STYLE),
            SCRIPT => file("text/javascript; charset=utf-8", live_page::SCRIPT),
            LOGIN => self.login(peer),
            "/" => self.page(request.uri().query().unwrap_or_default(), peer, access).await,
            path => match access {
                Ok(()) => self.flight(path.strip_prefix(FLIGHTS).unwrap_or_default()).await,
                Err(refusal) => self.refused(&refusal),
            },
        }
    }

    async fn page(&self, query: &str, peer: Peer, access: Result<(), Refusal>) -> Reply {
        if let Err(refusal) = access {
            let hidden = match refusal {
                Refusal::NoCredentials => Hidden::NoCredentials(self.login.token_path.as_deref()),
                Refusal::WebPage => Hidden::OtherSite,
            };
            return html(render(&*self.source, self.telemetry_path.as_str(), Err(hidden), query));
        }
        let Some(permit) = self.permits.acquire(peer).await else {
            return reply(StatusCode::SERVICE_UNAVAILABLE, TEXT, super::BUSY);
        };
        let (source, path) = (Arc::clone(&self.source), self.telemetry_path.clone());
        let query = query.to_owned();
        let rendered = tokio::task::spawn_blocking(move || {
            let page = render(&*source, path.as_str(), Ok(&body(&*source)), &query);
            drop(permit);
            page
        });
        match rendered.await {
            Ok(page) => html(page),
            Err(error) => reply(
                StatusCode::INTERNAL_SERVER_ERROR,
                TEXT,
                format!("cannot render the page: {error}\n"),
            ),
        }
    }

    /// Has a browser request credentials, which it then sends with each request to this server.
    fn login(&self, peer: Peer) -> Reply {
        if peer.identified {
            let answer = reply(StatusCode::SEE_OTHER, TEXT, "Logged in.\n");
            return with_header(answer, header::LOCATION, "/");
        }
        let answer = reply(StatusCode::UNAUTHORIZED, TEXT, format!("{}\n", self.login.hint));
        let challenge = "Basic realm=\"gpucause\", charset=\"UTF-8\"";
        with_header(answer, header::WWW_AUTHENTICATE, challenge)
    }

    /// Sends one flight record after the other, however many clients there are, and never in the place of a scrape.
    async fn flight(&self, name: &str) -> Reply {
        let missing =
            || reply(StatusCode::NOT_FOUND, JSON, api::failure("there is no such flight record"));
        let Some(records) = self.source.flights() else { return missing() };
        let Ok(permit) = Arc::clone(&self.downloads).try_acquire_owned() else {
            let busy = "another flight record is being sent; try again";
            return reply(StatusCode::SERVICE_UNAVAILABLE, JSON, api::failure(busy));
        };
        let (sender, sent) = oneshot::channel();
        let name = name.to_owned();
        let disposition = HeaderValue::try_from(format!("attachment; filename=\"{name}\""));
        tokio::task::spawn_blocking(move || {
            // No scrape waits for it: a slow client has the time that it needs.
            let mut page = PageWriter::new(sender, || false);
            match send(&records, &name, &mut page) {
                Ok(()) => page.finish(),
                Err(error) => page.fail(error),
            }
            drop(permit);
        });
        match (sent.await, disposition) {
            (Ok(Ok(body)), Ok(disposition)) => {
                let mut answer = reply(StatusCode::OK, "application/vnd.sqlite3", body);
                answer.headers_mut().insert(header::CONTENT_DISPOSITION, disposition);
                secure(answer)
            }
            _ => missing(),
        }
    }
}

fn send(records: &FlightRecords, name: &str, to: &mut dyn io::Write) -> io::Result<()> {
    let mut file = records.open(name)?;
    io::copy(&mut file, to).map(drop)
}

/// Names, chains and numbers, as they are now.
fn body(source: &dyn Source) -> Body {
    Body {
        processes: source.process_rows(),
        chains: source.chains(),
        timeline: source.timeline(),
        flights: source.flights().map(|records| records.files()),
        problem: source.problem(),
        now: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
    }
}

fn render(
    source: &dyn Source,
    telemetry_path: &str,
    body: Result<&Body, Hidden<'_>>,
    query: &str,
) -> String {
    let file = source.file();
    let head = Head {
        node: &source.node(),
        file: file.as_deref(),
        telemetry_path,
        observation: &source.observation(),
    };
    live_page::page(&head, body, &View::of(query))
}

fn html(page: String) -> Reply {
    secure(reply(StatusCode::OK, HTML, page))
}

fn file(content_type: &'static str, content: &'static str) -> Reply {
    secure(reply(StatusCode::OK, content_type, content))
}

fn secure(mut answer: Reply) -> Reply {
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "same-origin"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}
