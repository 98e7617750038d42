//! Operations that must not wait for a sample.

use super::*;
use crate::routes::Source as _;
use std::sync::mpsc::channel;
use std::thread;

/// A daemon loads its programs into the kernel, which takes root.
mod as_root {
    use super::*;

    #[test]
    fn a_slow_sample_holds_up_neither_health_checks_nor_chains_nor_a_reload() {
        let mut config = Config::default();
        config.probe.enabled = false;
        let daemon = Arc::new(Daemon::start(Options::default(), config.into()).unwrap());
        let (sampled, sampling) = channel::<()>();
        daemon.sampler.submit(move |_| _ = sampling.recv());
        let (done, answered) = channel();
        let other = Arc::clone(&daemon);
        thread::spawn(move || {
            let (_, _, _) = (other.ready(), other.observation(), other.chains());
            other.configure(other.config());
            other.config_rejected();
            // Nobody waits any more once the test has failed.
            let _ = done.send(other.config().probe.enabled);
        });
        assert_eq!(answered.recv_timeout(Duration::from_secs(10)), Ok(false));
        drop(sampled);
        assert!(!daemon.shared.state().config.successful);
    }
}
