//! What must not wait for a scrape.

use super::*;
use std::sync::mpsc::channel;
use std::thread;

#[test]
fn a_configuration_is_refused_while_a_scrape_is_under_way() {
    let mut config = Config::default();
    config.probe.enabled = false;
    let daemon = Arc::new(Daemon::start(Options::default(), config.into()).unwrap());
    let scrape = daemon.memory();
    let (done, refused) = channel();
    let other = Arc::clone(&daemon);
    thread::spawn(move || {
        other.config_refused();
        // Nobody waits any more once the test has failed.
        let _ = done.send(other.config().probe.enabled);
    });
    assert_eq!(refused.recv_timeout(Duration::from_secs(10)), Ok(false));
    drop(scrape);
    assert!(!daemon.observe().unwrap().config.successful);
}
