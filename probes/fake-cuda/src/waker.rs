//! A thread that ends another thread's wait after a given time.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;

use crate::{clock, futex};

const IDLE: u32 = 0;
const ASKED: u32 = 1;
const QUIT: u32 = 2;

struct Request {
    state: AtomicU32,
    after_ns: AtomicU64,
}

/// Ends when dropped. Belongs to one asking thread.
pub(crate) struct Waker(Arc<Request>);

impl Waker {
    /// Starts the thread; `release` ends the wait.
    pub(crate) fn start(
        name: &str,
        mut release: impl FnMut() + Send + 'static,
    ) -> io::Result<Self> {
        let request =
            Arc::new(Request { state: AtomicU32::new(IDLE), after_ns: AtomicU64::new(0) });
        let served = Arc::clone(&request);
        thread::Builder::new().name(name.into()).spawn(move || {
            loop {
                match served.state.load(Ordering::Acquire) {
                    QUIT => return,
                    ASKED => {
                        let after_ns = served.after_ns.load(Ordering::Relaxed);
                        if after_ns > 0 {
                            clock::sleep(after_ns);
                        }
                        let taken = served.state.compare_exchange(
                            ASKED,
                            IDLE,
                            Ordering::AcqRel,
                            Ordering::Relaxed,
                        );
                        if taken.is_ok() {
                            release();
                        }
                    }
                    _ => futex::wait(&served.state, IDLE, None),
                }
            }
        })?;
        Ok(Self(request))
    }

    /// Calls `release` in `after_ns` nanoseconds.
    pub(crate) fn wake_after(&self, after_ns: u64) {
        self.0.after_ns.store(after_ns, Ordering::Relaxed);
        self.0.state.store(ASKED, Ordering::Release);
        futex::wake(&self.0.state);
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        self.0.state.store(QUIT, Ordering::Release);
        futex::wake(&self.0.state);
    }
}
