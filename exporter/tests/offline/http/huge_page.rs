//! Pages that are too large for a socket's buffers.

use gpucause_page::family::{Family, Value};
use gpucause_page::metric::PROBE_STATUS;

use super::*;

/// Has a page of 32 MiB.
struct Huge;

impl Source for Huge {
    fn collectors(&self) -> Vec<&'static str> {
        Collectors::default().names()
    }

    fn scrape(&self, _: &Scope, page: &mut dyn Sink) -> Result<(), ScrapeError> {
        let path = "x".repeat(64 * 1024);
        for number in 0..512 {
            let mut family = Family::new(&PROBE_STATUS);
            let labels = [number.to_string().into(), path.clone().into(), "attached".into()];
            family.push(labels, Value::Integer(1));
            page.own(family)?;
        }
        Ok(())
    }

    fn chains(&self) -> Vec<Chain> {
        Vec::new()
    }

    fn observation(&self) -> ObservationState {
        Period::attached(0.0).into()
    }

    fn ready(&self) -> Readiness {
        Readiness::Ready
    }
}

#[test]
fn clients_that_do_not_take_their_huge_pages_keep_no_other_out() {
    let server = serve(Huge);
    let mut idle = Vec::new();
    for _ in 0..Limits::default().permits {
        let mut stream = connect(server.address);
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        // Its page is being sent.
        stream.read_exact(&mut [0; 12]).unwrap();
        idle.push(stream);
    }
    assert!(get(server.address, "/metrics").body.len() > 32 << 20);
}
