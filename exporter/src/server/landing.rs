//! The landing page for browsers.

use super::routes::TelemetryPath;
use crate::version;
use gpucause_engine::observation::ObservationState;
use gpucause_investigations::observation::sentence;

/// The observation state, and links to the endpoints.
pub(super) fn page(telemetry_path: &TelemetryPath, observation: &ObservationState) -> String {
    let observation = escape(&sentence(&observation.current));
    let path = escape(telemetry_path.as_str());
    let version = escape(version::LONG);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>gpucause</title></head>\n<body>\n\
         <h1>gpucause</h1>\n<p>Shows why a GPU is not being fed. Version {version}.</p>\n\
         <p>Observation: <strong>{observation}</strong></p>\n<ul>\n\
         <li><a href=\"{path}\">Metrics</a></li>\n\
         <li><a href=\"/api/v1/chains\">Causal chains</a> (with credentials)</li>\n\
         <li><a href=\"/-/healthy\">Health</a></li>\n\
         <li><a href=\"/-/ready\">Readiness</a></li>\n</ul>\n</body>\n</html>\n"
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpucause_engine::observation::Period;

    #[test]
    fn the_observation_state_stands_above_the_links() {
        let observation = Period::disabled(1_700_049_600.0, "<SIGUSR1>").into();
        let page = page(&"/metrics".parse().unwrap(), &observation);
        let (above, _) = page.split_once("<ul>").unwrap();
        let expected = "Observation: <strong>disabled since 2023-11-15 12:00:00 UTC: nothing is observed (&lt;SIGUSR1&gt;)</strong>";
        assert!(above.contains(expected), "{page}");
    }

    #[test]
    fn a_path_cannot_break_out_of_its_link() {
        let observation = Period::attached(1_700_049_600.0).into();
        let page = page(&"/\"><script>".parse().unwrap(), &observation);
        assert!(page.contains("<a href=\"/&quot;&gt;&lt;script&gt;\">Metrics</a>"), "{page}");
    }
}
