//! The one thread that reads accounts. It owns the `Observer` and runs one task after the other. Whoever asks for an observation
//! waits without holding a lock.

pub mod observer;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use gpucause_abi::Nanos;
use gpucause_probes::ReadError;

use crate::clock::monotonic_now;
use crate::observation::Observation;
use crate::pipeline::AccountSource;
use observer::{Explained, Observer, SHARED_FOR};

/// Why there is no sample.
#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    /// A kernel map cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A bug, which the log shows.
    #[error("taking a sample panicked")]
    Panicked,
}

type Task<S> = Box<dyn FnOnce(&mut Observer<S>) + Send>;

/// Submits tasks to the thread. Dropping it waits for the remaining tasks and for the end of the thread.
#[derive(Debug)]
pub struct Sampler<S> {
    /// `None` once the thread is to end.
    tasks: Option<Sender<Task<S>>>,
    thread: Option<JoinHandle<()>>,
}

impl<S: AccountSource<Error = ReadError> + Send + 'static> Sampler<S> {
    /// Starts the thread.
    pub fn start(mut observer: Observer<S>) -> io::Result<Self> {
        let (tasks, submitted) = channel();
        let work = move || run(&mut observer, &submitted);
        let thread = std::thread::Builder::new().name("gpucause-sample".into()).spawn(work)?;
        Ok(Self { tasks: Some(tasks), thread: Some(thread) })
    }

    /// An observation that is not older than `now`; its processes count as exported.
    pub fn observe(&self, now: Nanos) -> Result<Arc<Observation>, SampleError> {
        self.call(move |observer| Ok(Arc::clone(&observer.export(now)?.observation)))
    }

    /// The observation and the chains for a page that is requested at `now`.
    pub fn page(&self, now: Nanos) -> Result<Arc<Explained>, SampleError> {
        self.call(move |observer| observer.page(now))
    }

    /// Submits a task; does not wait for it.
    pub fn submit(&self, task: impl FnOnce(&mut Observer<S>) + Send + 'static) {
        if let Some(tasks) = &self.tasks {
            // The thread ends with this sender, not before.
            let _ = tasks.send(Box::new(task));
        }
    }

    /// Runs a task and waits for its result.
    pub fn call<T: Send + 'static>(
        &self,
        task: impl FnOnce(&mut Observer<S>) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, SampleError> {
        let (results, result) = channel();
        self.submit(move |observer| {
            // The caller waits for it.
            let _ = results.send(task(observer));
        });
        Ok(result.recv().map_err(|_| SampleError::Panicked)??)
    }
}

impl<S> Drop for Sampler<S> {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that takes samples had failed");
        }
    }
}

/// Runs tasks until the sender is dropped, and between them takes samples for scrapes that are expected.
fn run<S: AccountSource<Error = ReadError>>(observer: &mut Observer<S>, tasks: &Receiver<Task<S>>) {
    loop {
        let now = monotonic_now();
        let sample_at = observer.next_sample(now);
        // No page shares the last one after that, and it may be large.
        let forget_after = observer.keeps_latest().then_some(SHARED_FOR);
        let wait = sample_at.map(|at| at.less(now)).into_iter().chain(forget_after).min();
        let received = match wait {
            Some(Nanos(wait)) => tasks.recv_timeout(Duration::from_nanos(wait)),
            None => tasks.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        let task = match received {
            Ok(task) => task,
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) if sample_at.is_some_and(|at| at <= monotonic_now()) => {
                Box::new(sample_early)
            }
            Err(RecvTimeoutError::Timeout) => {
                observer.forget_latest();
                continue;
            }
        };
        // A panic must not prevent later tasks.
        if catch_unwind(AssertUnwindSafe(|| task(observer))).is_err() {
            tracing::error!("taking a sample panicked");
        }
    }
}

fn sample_early<S: AccountSource<Error = ReadError>>(observer: &mut Observer<S>) {
    if let Err(error) = observer.sample_early(monotonic_now()) {
        tracing::debug!(%error, "an expected scrape has no sample yet");
    }
}

#[cfg(test)]
mod tests;
