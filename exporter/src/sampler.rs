//! The one thread that reads accounts: it owns the `Pipeline`, does one task after the other, and hands out what it made.
//! Whoever wants an observation waits for it without holding a lock.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use gpucause_abi::Nanos;
use gpucause_probes::ReadError;

use crate::observation::Observation;
use crate::pipeline::{AccountSource, Pipeline, SHARED_FOR};

/// Why there is no sample.
#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    /// A kernel map cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It has a bug, which the log shows.
    #[error("taking a sample panicked")]
    Panicked,
}

type Task<S> = Box<dyn FnOnce(&mut Pipeline<S>) + Send>;

/// Hands tasks to the thread. Dropping it waits for those that are left, and for the end of the thread.
#[derive(Debug)]
pub(crate) struct Sampler<S> {
    /// `None` once the thread is to end.
    tasks: Option<Sender<Task<S>>>,
    thread: Option<JoinHandle<()>>,
}

impl<S: AccountSource<Error = ReadError> + Send + 'static> Sampler<S> {
    /// Starts the thread.
    pub(crate) fn start(mut pipeline: Pipeline<S>) -> io::Result<Self> {
        let (tasks, given) = channel();
        let work = move || follow(&mut pipeline, &given);
        let thread = std::thread::Builder::new().name("gpucause-sample".into()).spawn(work)?;
        Ok(Self { tasks: Some(tasks), thread: Some(thread) })
    }

    /// An observation to be shown that is not older than `now`.
    pub(crate) fn observe(&self, now: Nanos) -> Result<Arc<Observation>, SampleError> {
        self.ask(move |pipeline| pipeline.export(now))
    }

    /// The observation of a page that is asked for at `now`.
    pub(crate) fn page(&self, now: Nanos) -> Result<Arc<Observation>, SampleError> {
        self.ask(move |pipeline| pipeline.page(now))
    }

    /// Has the thread do something, after all that it was given before. Waits for nothing.
    pub(crate) fn tell(&self, task: impl FnOnce(&mut Pipeline<S>) + Send + 'static) {
        if let Some(tasks) = &self.tasks {
            // The thread ends with this sender, not before.
            let _ = tasks.send(Box::new(task));
        }
    }

    /// The same; waits for the answer.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        task: impl FnOnce(&mut Pipeline<S>) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, SampleError> {
        let (answers, answer) = channel();
        self.tell(move |pipeline| {
            // Nobody waits any more when whoever asked is gone.
            let _ = answers.send(task(pipeline));
        });
        Ok(answer.recv().map_err(|_| SampleError::Panicked)??)
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

/// Does tasks until nobody can give any.
fn follow<S: AccountSource>(pipeline: &mut Pipeline<S>, tasks: &Receiver<Task<S>>) {
    let shared_for = Duration::from_nanos(SHARED_FOR.0);
    loop {
        // No page wants it after that, and it may be large.
        let task = match pipeline.keeps_latest().then(|| tasks.recv_timeout(shared_for)) {
            Some(Ok(task)) => task,
            Some(Err(RecvTimeoutError::Timeout)) => {
                pipeline.forget_latest();
                continue;
            }
            Some(Err(RecvTimeoutError::Disconnected)) => return,
            None => match tasks.recv() {
                Ok(task) => task,
                Err(_) => return,
            },
        };
        // One that panics must not take those after it down.
        if catch_unwind(AssertUnwindSafe(|| task(pipeline))).is_err() {
            tracing::error!("taking a sample panicked");
        }
    }
}

#[cfg(test)]
mod tests;
