//! Routes requests to their responses.

mod access;
mod api;
mod flight;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod live;
mod reload_requests;
mod source;

use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use gpucause_http::server::body::PageWriter;
use gpucause_http::server::reply::{JSON, Reply, TEXT, reply, with_header};
use gpucause_http::server::{Peer, Permits, Respond, Server};
use gpucause_page::exposition::gzip::Gzip;
use gpucause_page::exposition::{ClassicBuckets, Format, negotiate};
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderName};
use hyper::{Method, Request, StatusCode};
use tokio::sync::{Semaphore, oneshot};

use crate::collector::Scope;
use access::{Refusal, may_read_chains};

pub use reload_requests::{ReloadHandle, ReloadRequest, ReloadRequests, reload_channel};
pub use source::{Readiness, ScrapeError, Source};

const WEB_PAGE: &str =
    "causal chains are not available to web pages; use a client that sends no Origin header";
const BUSY: &str = "Too many concurrent scrapes; try again.\n";

/// The path that metrics are served under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TelemetryPath(String);

/// Why text is not a [`TelemetryPath`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid telemetry path {0:?}; expected a path that begins with /, but not with /-/, and has no ?, # or whitespace"
)]
pub struct PathError(String);

impl FromStr for TelemetryPath {
    type Err = PathError;

    fn from_str(text: &str) -> Result<Self, PathError> {
        let forbidden = |c: char| matches!(c, '?' | '#') || c.is_whitespace() || c.is_control();
        if !text.starts_with('/') || text.starts_with("/-/") || text.contains(forbidden) {
            return Err(PathError(text.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }
}

impl TelemetryPath {
    /// The path.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The hints for clients without credentials.
struct Login {
    /// How programs get in.
    hint: String,
    /// The file of this host's token, if there is one.
    token_path: Option<String>,
}

/// The routes, and the permits of expensive ones.
pub struct Routes {
    source: Arc<dyn Source>,
    telemetry_path: TelemetryPath,
    permits: Permits,
    reload: Option<ReloadHandle>,
    login: Login,
    /// Flight records are sent one at a time.
    downloads: Arc<Semaphore>,
    started: Instant,
}

impl Routes {
    /// The routes of this server, answered from `source`.
    #[must_use]
    pub fn new(server: &Server, source: Arc<dyn Source>, telemetry_path: TelemetryPath) -> Self {
        let token_path = server.token_path().map(|path| path.display().to_string());
        let login = Login { hint: access::hint(server), token_path };
        Self::with_permits(server.permits(), source, telemetry_path, login)
    }

    fn with_permits(
        permits: Permits,
        source: Arc<dyn Source>,
        telemetry_path: TelemetryPath,
        login: Login,
    ) -> Self {
        let started = Instant::now();
        let downloads = Arc::new(Semaphore::new(1));
        Self { source, telemetry_path, permits, reload: None, login, downloads, started }
    }

    /// Lets clients request reloads.
    #[must_use]
    pub fn with_reload(self, handle: ReloadHandle) -> Self {
        Self { reload: Some(handle), ..self }
    }

    /// The response. HEAD gets the body of GET, which hyper does not send.
    async fn route<B>(&self, request: &Request<B>, peer: Peer) -> Reply {
        let path = request.uri().path();
        if path == "/-/reload" {
            return self.reload(request.method()).await;
        }
        if path == flight::RECORD {
            return self.record_flight(request, peer).await;
        }
        let known = path == self.telemetry_path.as_str()
            || matches!(path, "/-/healthy" | "/-/ready")
            || api::is_path(path)
            || live::is_path(path);
        if !known {
            return reply(StatusCode::NOT_FOUND, TEXT, "Not found.\n");
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let refusal = reply(StatusCode::METHOD_NOT_ALLOWED, TEXT, "Only GET and HEAD.\n");
            return with_header(refusal, header::ALLOW, "GET, HEAD");
        }
        match path {
            path if path == self.telemetry_path.as_str() => self.metrics(request, peer).await,
            path if api::is_path(path) => match may_read_chains(peer, request.headers()) {
                Ok(()) => self.api(path, peer).await,
                Err(refusal) => self.refused(&refusal),
            },
            "/-/healthy" => reply(StatusCode::OK, TEXT, "Healthy.\n"),
            "/-/ready" => match self.source.ready() {
                Readiness::Ready => reply(StatusCode::OK, TEXT, "Ready.\n"),
                Readiness::Disabled => {
                    let how =
                        "Probes are disabled: nothing is observed. SIGUSR1 attaches them again.";
                    reply(StatusCode::OK, TEXT, format!("Ready. {how}\n"))
                }
                Readiness::NotReady(reason) => {
                    reply(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("Not ready: {reason}\n"))
                }
            },
            _ => self.live(request, peer).await,
        }
    }

    fn refused(&self, refusal: &Refusal) -> Reply {
        match refusal {
            Refusal::NoCredentials => {
                let answer = reply(StatusCode::UNAUTHORIZED, JSON, api::failure(&self.login.hint));
                with_header(answer, header::WWW_AUTHENTICATE, "Bearer realm=\"gpucause\"")
            }
            Refusal::WebPage => reply(StatusCode::FORBIDDEN, JSON, api::failure(WEB_PAGE)),
        }
    }

    /// Runs on a blocking thread: there may be many chains, and an evaluation may hold their lock.
    async fn api(&self, path: &str, peer: Peer) -> Reply {
        let Some(permit) = self.permits.acquire(peer).await else {
            return reply(StatusCode::SERVICE_UNAVAILABLE, JSON, api::failure(BUSY.trim_end()));
        };
        let source = Arc::clone(&self.source);
        let (up, path) = (self.started.elapsed(), path.to_owned());
        let answer = tokio::task::spawn_blocking(move || {
            let answer = api::answer(&path, &*source, up);
            drop(permit);
            answer
        });
        match answer.await {
            Ok(answer) => answer,
            Err(error) => {
                reply(StatusCode::INTERNAL_SERVER_ERROR, JSON, api::failure(&error.to_string()))
            }
        }
    }

    async fn reload(&self, method: &Method) -> Reply {
        if !matches!(*method, Method::POST | Method::PUT) {
            let refusal = reply(StatusCode::METHOD_NOT_ALLOWED, TEXT, "Only POST and PUT.\n");
            return with_header(refusal, header::ALLOW, "POST, PUT");
        }
        let Some(handle) = &self.reload else {
            let disabled = "Not enabled; --web.enable-lifecycle enables it.\n";
            return reply(StatusCode::FORBIDDEN, TEXT, disabled);
        };
        match handle.reload().await {
            Ok(()) => reply(StatusCode::OK, TEXT, "Reloaded.\n"),
            Err(problem) => {
                let problem = format!(
                    "Configuration reload failed; the previous configuration is still active:\n{problem}\n"
                );
                reply(StatusCode::INTERNAL_SERVER_ERROR, TEXT, problem)
            }
        }
    }

    async fn metrics<B>(&self, request: &Request<B>, peer: Peer) -> Reply {
        let query = request.uri().query().unwrap_or_default();
        let settings = self.source.metrics();
        let scope = match Scope::parse(query, &self.source.collectors(), settings.level) {
            Ok(scope) => scope,
            Err(error) => return reply(StatusCode::BAD_REQUEST, TEXT, format!("{error}\n")),
        };
        let Some(permit) = self.permits.acquire(peer).await else {
            return reply(StatusCode::SERVICE_UNAVAILABLE, TEXT, BUSY);
        };
        let headers = request.headers();
        let format = negotiate::format(&joined(headers, &header::ACCEPT));
        let buckets = ClassicBuckets::of(format, scope.level, settings.classic_buckets);
        let gzip = negotiate::gzip(&joined(headers, &header::ACCEPT_ENCODING));
        let (source, permits) = (Arc::clone(&self.source), self.permits.clone());
        let (sender, page) = oneshot::channel();
        // Holds the permit until the scrape ends, even if the client hangs up.
        tokio::task::spawn_blocking(move || {
            let page = PageWriter::new(sender, || permits.has_waiting());
            write_page(source.as_ref(), &scope, (format, buckets), gzip, page);
            drop(permit);
        });
        let failure = match page.await {
            Ok(Ok(body)) => {
                let page = reply(StatusCode::OK, format.content_type(), body);
                let page = with_header(page, header::VARY, "Accept, Accept-Encoding");
                return if gzip {
                    with_header(page, header::CONTENT_ENCODING, "gzip")
                } else {
                    page
                };
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the scrape panicked".to_owned(),
        };
        tracing::error!(error = failure, "a scrape failed");
        reply(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{failure}\n"))
    }
}

impl Respond for Routes {
    async fn respond(&self, request: &Request<Incoming>, peer: Peer) -> Reply {
        self.route(request, peer).await
    }
}

fn write_page(
    source: &dyn Source,
    scope: &Scope,
    (format, buckets): (Format, ClassicBuckets),
    gzip: bool,
    mut page: PageWriter<'_, ScrapeError>,
) {
    let write = |sink: &mut dyn io::Write| {
        let mut writer = format.writer(scope.level, buckets, sink);
        source.scrape(scope, &mut writer)?;
        Ok(writer.finish()?)
    };
    let written = if gzip {
        Gzip::new(&mut page).map_err(ScrapeError::from).and_then(|mut gzip| {
            write(&mut gzip)?;
            Ok(gzip.finish()?)
        })
    } else {
        write(&mut page)
    };
    match written {
        Ok(()) => page.finish(),
        Err(error) => page.fail(error),
    }
}

/// All values of a header that may occur several times.
fn joined(headers: &HeaderMap, name: &HeaderName) -> String {
    let values: Vec<_> =
        headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
    values.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_telemetry_path_is_absolute_and_not_reserved() {
        for text in ["/metrics", "/", "/a/b", "/-"] {
            assert_eq!(text.parse::<TelemetryPath>().unwrap().as_str(), text);
        }
        for text in ["", "metrics", "/-/healthy", "/a?b", "/a b", "/a#b", "/a\n"] {
            let error = text.parse::<TelemetryPath>().unwrap_err().to_string();
            assert!(error.contains("begins with /"), "{error}");
        }
    }
}
