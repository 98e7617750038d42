//! The page for people who open the address in a browser.

use super::routes::TelemetryPath;
use crate::version;

/// Links to what the server has.
pub(super) fn page(telemetry_path: &TelemetryPath) -> String {
    let path = escape(telemetry_path.as_str());
    let version = escape(version::LONG);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>gpucause</title></head>\n<body>\n\
         <h1>gpucause</h1>\n<p>Tells why a GPU is not being fed. Version {version}.</p>\n<ul>\n\
         <li><a href=\"{path}\">Metrics</a></li>\n\
         <li><a href=\"/api/v1/chains\">Causal chains</a> (from this host)</li>\n\
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

    #[test]
    fn a_path_cannot_break_out_of_its_link() {
        let page = page(&"/\"><script>".parse().unwrap());
        assert!(page.contains("<a href=\"/&quot;&gt;&lt;script&gt;\">Metrics</a>"), "{page}");
    }
}
