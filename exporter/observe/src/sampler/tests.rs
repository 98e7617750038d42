use super::*;
use crate::chains::Chains;
use crate::clock::WallClock;
use crate::kernel_launches::NameSource;
use crate::pipeline::Pipeline;
use crate::series::settings::SeriesSettings;
use gpucause_abi::ProcId;
use gpucause_abi::snapshot::{HandleName, Snapshot};
use gpucause_engine::settings::Settings;
use std::collections::HashSet;
use std::time::{Duration, Instant};

const MILLISECOND: u64 = 1_000_000;

/// A host without processes.
#[derive(Debug, Default)]
struct Idle {
    now: Nanos,
}

impl AccountSource for Idle {
    type Error = ReadError;

    fn snapshot(&mut self) -> Result<Snapshot, ReadError> {
        assert!(self.now > Nanos(0), "a bug");
        Ok(Snapshot { taken_at: self.now, ..Snapshot::default() })
    }

    fn remove(&mut self, _: &HashSet<ProcId>) -> Result<(), ReadError> {
        Ok(())
    }

    fn clock(&mut self, _: Nanos) -> WallClock {
        WallClock::with_origin(Duration::ZERO)
    }
}

/// A host without processes by the real clock; reports when a snapshot is taken.
#[derive(Debug)]
struct Real {
    sampled: Sender<Nanos>,
}

impl AccountSource for Real {
    type Error = ReadError;

    fn snapshot(&mut self) -> Result<Snapshot, ReadError> {
        let taken_at = monotonic_now();
        self.sampled.send(taken_at).unwrap();
        Ok(Snapshot { taken_at, ..Snapshot::default() })
    }

    fn remove(&mut self, _: &HashSet<ProcId>) -> Result<(), ReadError> {
        Ok(())
    }

    fn clock(&mut self, _: Nanos) -> WallClock {
        WallClock::with_origin(Duration::ZERO)
    }
}

impl NameSource for Real {
    fn handle_name(&mut self, _: ProcId, _: u64) -> Option<HandleName> {
        None
    }
}

impl NameSource for Idle {
    fn handle_name(&mut self, _: ProcId, _: u64) -> Option<HandleName> {
        None
    }
}

fn observer() -> Observer<Idle> {
    let chains = Arc::new(Chains::new(Settings::default()));
    Observer::new(Pipeline::new(Idle::default(), Nanos(0)), chains)
}

fn at(milliseconds: u64) -> Nanos {
    Nanos(milliseconds * MILLISECOND)
}

impl Observer<Idle> {
    /// When the snapshot was taken that a page shows.
    fn page_at(&mut self, now: Nanos) -> Nanos {
        self.source().now = now;
        self.page(now).unwrap().observation.snapshot.taken_at
    }
}

#[test]
fn pages_within_100_ms_share_a_sample_and_a_later_one_has_its_own() {
    let mut observer = observer();
    assert_eq!(observer.page_at(at(1_000)), at(1_000));
    assert_eq!(observer.page_at(at(1_040)), at(1_000));
    assert_eq!(observer.page_at(at(1_099)), at(1_000));
    assert_eq!(observer.page_at(at(1_100)), at(1_100));
}

#[test]
fn whoever_compares_observations_has_a_new_one_which_pages_share() {
    let mut observer = observer();
    assert_eq!(observer.page_at(at(1_000)), at(1_000));
    observer.source().now = at(1_010);
    let explained = observer.observe(at(1_010)).unwrap();
    assert_eq!(explained.observation.snapshot.taken_at, at(1_010));
    assert!(Arc::ptr_eq(&explained, &observer.page(at(1_020)).unwrap()));
}

#[test]
fn a_scrape_at_a_fixed_interval_finds_a_sample_that_was_taken_shortly_before() {
    let mut observer = observer();
    for second in [1, 2, 3] {
        assert_eq!(observer.next_sample(at(second * 1_000)), None);
        assert_eq!(observer.page_at(at(second * 1_000)), at(second * 1_000));
    }
    let due = observer.next_sample(at(3_500)).unwrap();
    assert!((at(3_920)..=at(3_980)).contains(&due), "{due:?}");
    observer.source().now = at(3_970);
    observer.sample_early(at(3_970)).unwrap();
    assert_eq!(observer.next_sample(at(3_970)), None, "once for each scrape");
    assert_eq!(observer.page_at(at(4_001)), at(3_970));
    // One that comes late has its own.
    observer.source().now = at(4_970);
    observer.sample_early(at(4_970)).unwrap();
    assert_eq!(observer.page_at(at(5_100)), at(5_100));
}

#[test]
fn what_can_wait_is_sampled_after_a_page_that_it_would_delay() {
    let mut observer = observer();
    for second in [1, 2, 3] {
        observer.page_at(at(second * 1_000));
    }
    let mut observed_at = |milliseconds| {
        observer.source().now = at(milliseconds);
        let observed = observer.observe_between_pages(at(milliseconds)).unwrap();
        observed.map(|own| own.observation.snapshot.taken_at)
    };
    assert_eq!(observed_at(3_500), Ok(at(3_500)));
    assert_eq!(observed_at(3_850), Err(at(250)));
    assert_eq!(observed_at(4_100), Ok(at(4_100)));
}

#[test]
fn the_thread_takes_a_sample_before_an_expected_scrape() {
    let (sampled, samples) = channel();
    let chains = Arc::new(Chains::new(Settings::default()));
    let mut observer = Observer::new(Pipeline::new(Real { sampled }, Nanos(0)), chains);
    let now = monotonic_now();
    // The last of three scrapes, a second apart, was half a second ago.
    for ago in [2_500, 1_500, 500] {
        observer.page(now.less(at(ago))).unwrap();
    }
    while samples.try_recv().is_ok() {}
    let sampler = Sampler::start(observer).unwrap();
    let taken_at = samples.recv_timeout(Duration::from_secs(5)).unwrap();
    assert!(taken_at > now, "before anybody asks");
    drop(sampler);
}

#[test]
fn a_page_after_a_reload_does_not_share_a_sample_from_before() {
    let mut observer = observer();
    assert_eq!(observer.page_at(at(1_000)), at(1_000));
    observer.configure(&SeriesSettings::default());
    assert_eq!(observer.page_at(at(1_001)), at(1_001));
}

#[test]
fn a_sample_that_panics_is_an_error_and_the_next_one_is_taken() {
    let sampler = Sampler::start(observer()).unwrap();
    let failed = sampler.page(at(0));
    assert!(matches!(failed, Err(SampleError::Panicked)), "{failed:?}");
    let taken = sampler.call(|observer| Ok(observer.page_at(at(1_000))));
    assert_eq!(taken.unwrap(), at(1_000));
}

#[test]
fn a_sample_that_no_page_can_share_any_more_takes_no_memory() {
    let sampler = Sampler::start(observer()).unwrap();
    sampler.submit(|observer| observer.source().now = at(1_000));
    let sample = Arc::downgrade(&sampler.page(at(1_000)).unwrap());
    let begin = Instant::now();
    while sample.strong_count() > 0 {
        assert!(begin.elapsed() < Duration::from_secs(30), "it is still kept");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn submitting_a_task_does_not_wait_for_a_sample_under_way() {
    let sampler = Sampler::start(observer()).unwrap();
    let (end, ended) = channel::<()>();
    sampler.submit(move |_| _ = ended.recv());
    sampler.submit(|observer| observer.source().now = at(1_000));
    drop(end);
    assert_eq!(sampler.page(at(1_000)).unwrap().observation.snapshot.taken_at, at(1_000));
}
