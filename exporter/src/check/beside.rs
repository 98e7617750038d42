//! Whether an exporter that already runs at a listen address observes.

use std::time::Duration;

use gpucause_engine::observation::{ObservationState, State as Observation};
use gpucause_investigations::http::Client;
use gpucause_investigations::node::{self, AskError, NodeUrl};
use gpucause_investigations::observation::sentence;
use tokio::time::timeout;

use super::{Line, State};
use crate::nodes::block_on;
use crate::server::ListenAddress;
use crate::token_file;

const TIMEOUT: Duration = Duration::from_secs(2);
const UNAUTHORIZED: u16 = 401;

/// The line about the exporter at this address; `None` where there is no exporter.
pub(super) fn line(address: &ListenAddress) -> Option<Line> {
    let url: NodeUrl = format!("http://{}", address.local_address()?).parse().ok()?;
    let client = Client::new(url.address().clone(), None).ok()?;
    let client = client.with_token_files(token_file::candidates(url.address()));
    let answer = block_on(async { timeout(TIMEOUT, node::chains(&client)).await }).ok()?.ok()?;
    let (state, detail) = match answer {
        Ok(answer) => observes(answer.observation.as_ref()),
        Err(AskError::Unauthorized(_)) => {
            (State::Missing, "this exporter requires a password; use gpucause explain".into())
        }
        Err(AskError::Refused(_, UNAUTHORIZED, _)) => {
            (State::Missing, "this exporter requires its token; run gpucause check as root".into())
        }
        // The port is free, or another program has it.
        Err(_) => return None,
    };
    Some(Line { state, subject: format!("observation {address}"), detail, blocks: false })
}

fn observes(state: Option<&ObservationState>) -> (State, String) {
    let Some(ObservationState { current, .. }) = state else {
        return (State::Missing, "this exporter is too old to report whether it observes".into());
    };
    match current.state {
        Observation::Attached => (State::Ok, sentence(current)),
        Observation::Partial | Observation::Disabled => (State::Missing, sentence(current)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpucause_engine::observation::Period;

    #[test]
    fn an_exporter_that_does_not_observe_is_no_ok() {
        let line_of = |period: Period| observes(Some(&period.into()));
        let (state, detail) = line_of(Period::disabled(1_700_049_600.0, "SIGUSR1"));
        assert_eq!(state, State::Missing);
        assert!(detail.starts_with("disabled since 2023-11-15 12:00:00 UTC"), "{detail}");
        assert_eq!(line_of(Period::attached(0.0)).0, State::Ok);
        assert_eq!(observes(None).0, State::Missing);
    }
}
