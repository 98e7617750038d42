//! A lock whose holder wakes nobody that is about to look anyway, and then waits until another has taken it, as Python's does for its
//! interpreter.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::PIECE_NS;
use crate::waker::Waker;
use crate::{clock, futex};

/// In so many turns the holder does wake the other.
const WAKES: u32 = 8;
const TAKEN: u32 = 1;

/// On a page of its own, far from all that the two threads wait for besides.
#[repr(C, align(4096))]
struct Lock {
    state: AtomicU32,
    /// How often the other took it after its holder, and the holder before it.
    turns: AtomicU32,
    held: AtomicU32,
    busy_ns: AtomicU64,
}

/// The lock, and the thread that has it meanwhile.
pub(super) struct Switched {
    lock: Arc<Lock>,
    holder: Waker,
}

fn poll_until_taken(lock: &Lock) {
    while lock.state.compare_exchange(0, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        futex::wait(&lock.state, TAKEN, Some(PIECE_NS));
    }
}

impl Switched {
    pub(super) fn new() -> io::Result<Self> {
        let lock = Arc::new(Lock {
            state: AtomicU32::new(0),
            turns: AtomicU32::new(0),
            held: AtomicU32::new(0),
            busy_ns: AtomicU64::new(0),
        });
        let of_holder = Arc::clone(&lock);
        let holder = Waker::start("lock-holder", move || {
            let turns = of_holder.turns.load(Ordering::Acquire);
            poll_until_taken(&of_holder);
            of_holder.held.fetch_add(1, Ordering::AcqRel);
            clock::spin(of_holder.busy_ns.load(Ordering::Relaxed));
            of_holder.state.store(0, Ordering::Release);
            if turns < WAKES {
                futex::wake(&of_holder.state);
            }
            while of_holder.turns.load(Ordering::Acquire) == turns {
                futex::wait(&of_holder.turns, turns, None);
            }
        })?;
        Ok(Self { lock, holder })
    }

    pub(super) fn wait(&self, ns: u64) {
        let lock = &*self.lock;
        lock.busy_ns.store(ns, Ordering::Relaxed);
        let wakes = lock.turns.load(Ordering::Relaxed) < WAKES;
        if wakes {
            poll_until_taken(lock);
        }
        self.holder.wake_after(0);
        if wakes {
            // The holder polls by then.
            clock::sleep(2 * PIECE_NS);
            lock.state.store(0, Ordering::Release);
            futex::wake(&lock.state);
        }
        while lock.held.load(Ordering::Acquire) == lock.turns.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        poll_until_taken(lock);
        lock.turns.fetch_add(1, Ordering::AcqRel);
        futex::wake(&lock.turns);
        lock.state.store(0, Ordering::Release);
    }
}
