//! Every kind of client that does harm at a time, and proper scrapes between them: they are answered, and nothing stays.
//! A program of its own, since it measures its own memory.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its fixtures too")]

use std::io::Write as _;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpucause_fixture::elsewhere::{connect_from, request_from};
use gpucause_fixture::poll::until;
use gpucause_fixture::server;
use gpucause_http::server::Limits;
use gpucause_http::web_config::LiveWebConfig;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

const ATTACKER: [u8; 4] = [127, 0, 0, 1];
const OTHER: [u8; 4] = [127, 0, 0, 2];
/// How long a scrape may take whatever others do.
const SCRAPE: Duration = Duration::from_secs(1);
/// How long a page takes to be made, as that of a host with some 60 processes does.
const PAGE: Duration = Duration::from_millis(15);
const ROUNDS: usize = 3;
/// Malformed requests of a round.
const MALFORMED: usize = 10_000 / ROUNDS + 1;
/// Memory that may stay, in bytes: what the allocator rounds up.
const LEFT: u64 = 8 << 20;

/// Memory that this process allocated and uses, in bytes.
fn allocated() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() << 10
}

/// For how long a thread was kept from running by others, by its folder below `/proc`.
fn kept_waiting(task: &Path) -> Duration {
    let times = std::fs::read_to_string(task.join("schedstat")).unwrap();
    Duration::from_nanos(times.split(' ').nth(1).unwrap().parse().unwrap())
}

/// For how long the server and this thread were: a host that is busy otherwise is none of the clients' doing.
fn queued() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let is_server = |task: &PathBuf| {
        std::fs::read_to_string(task.join("comm"))
            .is_ok_and(|name| name.trim_end() == server::THREAD)
    };
    let server = tasks.into_iter().find(is_server).unwrap();
    kept_waiting(&server) + kept_waiting(Path::new("/proc/thread-self"))
}

/// Scrapes from both addresses; tells the longest that one took.
fn scrapes(server: SocketAddr) -> Duration {
    let mut longest = Duration::ZERO;
    for _ in 0..5 {
        for from in [OTHER, ATTACKER] {
            let (begin, before) = (Instant::now(), queued());
            let response = request_from(from, server, "/metrics", "");
            let (took, queued) = (begin.elapsed(), queued() - before);
            assert_eq!(response.status, 200, "{from:?} after {took:?}");
            let own = took.saturating_sub(queued);
            assert!(own < SCRAPE, "{from:?}: {took:?}, including {queued:?} in the run queue");
            longest = longest.max(own);
        }
    }
    longest
}

fn opened(count: usize, server: SocketAddr, bytes: &[u8]) -> Vec<TcpStream> {
    let open = |_| {
        let mut stream = connect_from(ATTACKER, server);
        // The server may have hung up.
        let _ = stream.write_all(bytes);
        stream
    };
    (0..count).map(open).collect()
}

/// Requests that are none and bytes that are nothing.
fn malformed(server: SocketAddr, seed: u64) {
    let words: [&[u8]; 4] = [
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\n: x\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"\x16\x03\x01\xff\xff\x01\x00",
    ];
    let mut state = seed | 1;
    for sent in 0..MALFORMED {
        let mut stream = connect_from(ATTACKER, server);
        let noise = [(); 64].map(|()| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        });
        let bytes = if sent % 2 == 0 { words[sent / 2 % words.len()] } else { &noise };
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
    }
}

#[test]
fn scrapes_are_answered_within_a_second_under_siege_and_memory_comes_back() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let server = server::start_slow(LiveWebConfig::default(), Limits::default(), PAGE);
    let address = server.address;
    let mut level = 0;
    for round in 0..ROUNDS {
        let longest = std::thread::scope(|scope| {
            scope.spawn(move || malformed(address, round as u64 + 1));
            let silent = opened(500, address, b"");
            let slow = opened(500, address, b"GET /metrics HTTP/1.1\r\nX: ");
            let mut longest = scrapes(address);
            let request = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
            let greedy = opened(200, address, request.repeat(50).as_bytes());
            longest = longest.max(scrapes(address));
            drop((silent, slow, greedy));
            longest
        });
        println!("round {round}: the longest scrape took {longest:?}, {} KiB", allocated() >> 10);
        if round == 0 {
            level = until("calm", || (scrapes(address) < PAGE * 20).then(allocated));
        }
    }
    until("memory to come back", || {
        scrapes(address);
        (allocated() <= level + LEFT).then_some(())
    });
}
