//! A lock whose holder wakes nobody that is about to look anyway, and then waits until another has taken it, as Python's does for its
//! interpreter.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::PIECE_NS;
use crate::waker::Waker;
use crate::{clock, futex};

/// In so many turns the holder does wake the other.
const WAKES: u32 = 8;
const TAKEN: u32 = 1;
/// How long the other works with the lock.
const WORK_NS: u64 = 100_000;
/// How long it tries to get the lock before it waits again.
const SPIN_NS: u64 = 10_000;
/// A pause between two turns, in which the thread leaves its CPU.
pub(super) const PAUSE_NS: u64 = 100_000;

/// The holder's next action after it has released the lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Release {
    /// Wakes the other.
    Wakes,
    /// Waits until the other has taken the lock.
    Waits,
    /// Spins until the other has taken it.
    Spins,
    /// Waits for the lock again, which it had taken itself when its own wait timed out.
    Polls,
}

/// The holder's action in each turn.
type Releases = fn(u32) -> Release;

pub(super) fn waits_or_polls(turn: u32) -> Release {
    match turn {
        0..WAKES => Release::Wakes,
        _ if turn % 6 == 5 => Release::Polls,
        _ => Release::Waits,
    }
}

/// The holder mostly spins, so that the kernel sees neither thread wake the other.
pub(super) fn spins(turn: u32) -> Release {
    match turn {
        0..WAKES => Release::Wakes,
        _ if turn % 24 == 11 => Release::Waits,
        _ => Release::Spins,
    }
}

/// The holder mostly spins, and waits for the lock itself in one of six turns.
pub(super) fn seldom_polls(turn: u32) -> Release {
    match turn {
        _ if turn % 60 < WAKES => Release::Wakes,
        _ if turn % 6 == 5 => Release::Polls,
        _ => Release::Spins,
    }
}

/// On a page of its own, far from all that the two threads wait for besides.
#[repr(C, align(4096))]
struct Lock {
    state: AtomicU32,
    /// How often the other took it after its holder, and the holder before it.
    turns: AtomicU32,
    held: AtomicU32,
    /// Set when a wait of the other has timed out in this turn.
    is_asked: AtomicBool,
    busy_ns: AtomicU64,
}

/// The lock, and the thread that has it meanwhile.
pub(super) struct Switched {
    lock: Arc<Lock>,
    holder: Waker,
    releases: Releases,
    /// How long a thread sleeps after it had the lock, so that its next wait for it is another one.
    pause_ns: u64,
}

fn poll_until_taken(lock: &Lock) {
    while lock.state.compare_exchange(0, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        futex::wait(&lock.state, TAKEN, Some(PIECE_NS));
    }
}

/// Takes the lock as `poll_until_taken` does. Each wait that times out asks the holder for it, which then gives it away at once.
fn ask_until_taken(lock: &Lock) {
    while lock.state.compare_exchange(0, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        futex::wait(&lock.state, TAKEN, Some(PIECE_NS));
        lock.is_asked.store(true, Ordering::Release);
        let until = clock::monotonic_ns() + SPIN_NS;
        while lock.state.load(Ordering::Acquire) == TAKEN && clock::monotonic_ns() < until {
            std::hint::spin_loop();
        }
    }
}

/// Releases the lock when the holder polls it, in the middle of a wait.
fn give_unseen(lock: &Lock) {
    clock::sleep(2 * PIECE_NS + PIECE_NS / 2);
    lock.state.store(0, Ordering::Release);
}

/// Releases the lock when the holder polls it, and wakes the holder.
fn give(lock: &Lock) {
    give_unseen(lock);
    futex::wake(&lock.state);
}

impl Switched {
    pub(super) fn new(releases: Releases, pause_ns: u64) -> io::Result<Self> {
        let lock = Arc::new(Lock {
            state: AtomicU32::new(0),
            turns: AtomicU32::new(0),
            held: AtomicU32::new(0),
            is_asked: AtomicBool::new(false),
            busy_ns: AtomicU64::new(0),
        });
        let of_holder = Arc::clone(&lock);
        let holder = Waker::start("lock-holder", move || {
            let turns = of_holder.turns.load(Ordering::Acquire);
            poll_until_taken(&of_holder);
            of_holder.held.fetch_add(1, Ordering::AcqRel);
            clock::spin(of_holder.busy_ns.load(Ordering::Relaxed));
            of_holder.is_asked.store(false, Ordering::Release);
            while releases(turns) != Release::Wakes && !of_holder.is_asked.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            of_holder.state.store(0, Ordering::Release);
            let is_taken = || of_holder.turns.load(Ordering::Acquire) != turns;
            match releases(turns) {
                Release::Wakes => futex::wake(&of_holder.state),
                Release::Spins | Release::Polls => {
                    while !is_taken() {
                        std::hint::spin_loop();
                    }
                }
                Release::Waits => {}
            }
            while !is_taken() {
                futex::wait(&of_holder.turns, turns, None);
            }
            if releases(turns) == Release::Polls {
                poll_until_taken(&of_holder);
                of_holder.state.store(0, Ordering::Release);
            }
        })?;
        Ok(Self { lock, holder, releases, pause_ns })
    }

    pub(super) fn wait(&self, ns: u64) {
        let lock = &*self.lock;
        lock.busy_ns.store(ns, Ordering::Relaxed);
        let release = (self.releases)(lock.turns.load(Ordering::Relaxed));
        if matches!(release, Release::Wakes | Release::Polls) {
            poll_until_taken(lock);
        }
        self.holder.wake_after(0);
        match release {
            Release::Wakes => give(lock),
            Release::Polls => give_unseen(lock),
            Release::Waits | Release::Spins => {}
        }
        while lock.held.load(Ordering::Acquire) == lock.turns.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        ask_until_taken(lock);
        clock::spin(WORK_NS);
        lock.turns.fetch_add(1, Ordering::AcqRel);
        match release {
            Release::Polls => give(lock),
            Release::Spins => lock.state.store(0, Ordering::Release),
            Release::Wakes | Release::Waits => {
                futex::wake(&lock.turns);
                lock.state.store(0, Ordering::Release);
            }
        }
        if self.pause_ns > 0 {
            clock::sleep(self.pause_ns);
        }
    }
}
