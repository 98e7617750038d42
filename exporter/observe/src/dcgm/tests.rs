//! The state of the upstream page over time.

use gpucause_http::client::GetError;

use super::*;

const INTERVAL: Duration = Duration::from_secs(10);

fn upstream() -> Upstream {
    Upstream::new("http://localhost:9401".parse().unwrap(), None, INTERVAL).unwrap()
}

fn families() -> Vec<ForeignFamily> {
    parse(
        b"DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-a\"} 97\nDCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-b\"} 0\n\
            DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{UUID=\"GPU-a\"} 8\n",
    )
    .unwrap()
}

#[test]
fn a_page_is_exported_until_it_is_three_intervals_old() {
    let upstream = upstream();
    let begin = Instant::now();
    let (none, state) = upstream.view(begin);
    assert!(none.is_empty() && !state.up && state.age.is_none());
    upstream.record(Ok(families()), begin);
    let (page, state) = upstream.view(begin + INTERVAL);
    assert_eq!((page.len(), state.up, state.age), (2, true, Some(INTERVAL)));
    upstream.record(Err(FetchError::Slow), begin + INTERVAL);
    let (page, state) = upstream.view(begin + INTERVAL * 3);
    assert_eq!((page.len(), state.up, state.age), (2, false, Some(INTERVAL * 3)));
    assert!(state.failures.contains(&("slow", 1)) && state.failures.contains(&("huge", 0)));
    let late = begin + INTERVAL * 3 + Duration::from_millis(1);
    let (page, state) = upstream.view(late);
    assert!(page.is_empty() && state.age.is_none());
    upstream.record(Err(GetError::Huge(1).into()), late);
    upstream.record(Ok(families()), late);
    let (page, state) = upstream.view(late);
    assert_eq!((page.len(), state.up, state.age), (2, true, Some(Duration::ZERO)));
}

#[test]
fn every_gpu_of_the_page_has_a_clock() {
    let families: Vec<_> = families().into_iter().map(Arc::new).collect();
    let reasons: Vec<_> = clock_reasons(&families).collect();
    assert!(reasons.contains(&("GPU-b", None)));
    assert_eq!(reasons.last(), Some(&("GPU-a", Some(8))));
}
