//! The protocol with the starting process: `ready`, `go`, the result, the end; and the threads in between.

use std::cell::Cell;
use std::io::{self, Read as _, Write as _};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread::{Builder, JoinHandle};

use anyhow::{Result, bail};
use serde_json::{Value, json};

use crate::cli::Common;
use crate::process::thread_id;

/// Says that the threads exist, and waits for `go` if asked to.
pub(crate) fn ready(common: &Common, tids: &[i32], more: &Value) -> Result<()> {
    let mut ready = json!({ "pid": std::process::id(), "tids": tids });
    if let (Value::Object(ready), Value::Object(more)) = (&mut ready, more) {
        ready.extend(more.clone());
    }
    println!("ready {ready}");
    io::stdout().flush()?;
    if common.wait {
        let mut line = String::new();
        if io::stdin().read_line(&mut line)? == 0 {
            bail!("standard input closed before the line that starts the work");
        }
    }
    Ok(())
}

/// Prints the result, and stays until standard input closes if asked to.
pub(crate) fn finish(common: &Common, result: &Value) -> Result<()> {
    println!("{result}");
    io::stdout().flush()?;
    if common.hold {
        until_closed()?;
    }
    Ok(())
}

/// Waits until standard input closes.
pub(crate) fn until_closed() -> Result<()> {
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Passed to each thread's work.
pub(crate) struct StartBarrier {
    /// The thread's number, from 0.
    pub(crate) index: usize,
    exists: Sender<Option<i32>>,
    reached: Cell<bool>,
    start: Arc<Barrier>,
}

impl StartBarrier {
    /// Reports that the thread is prepared and waits for the start.
    pub(crate) fn wait(&self) {
        self.reached.set(true);
        // A closed channel means that the session failed, and the barrier never opens.
        let _ = self.exists.send(Some(thread_id()));
        self.start.wait();
    }
}

impl Drop for StartBarrier {
    fn drop(&mut self) {
        if !self.reached.get() {
            let _ = self.exists.send(None);
        }
    }
}

/// Threads that work at the same time.
pub(crate) struct Threads {
    running: Vec<JoinHandle<()>>,
    results: Receiver<Result<Value>>,
    end: Arc<Barrier>,
}

impl Threads {
    /// Starts `count` threads named `launcher-N` and, once each has passed its barrier's preparation, says `ready` and starts
    /// the work.
    pub(crate) fn run<W>(common: &Common, count: usize, work: W) -> Result<Self>
    where
        W: Fn(&StartBarrier) -> Result<Value> + Send + Sync + 'static,
    {
        let work = Arc::new(work);
        let start = Arc::new(Barrier::new(count + 1));
        let end = Arc::new(Barrier::new(count + 1));
        let (exists, existing) = channel();
        let (done, results) = channel();
        let mut running = Vec::new();
        for index in 0..count {
            let (exists, start) = (exists.clone(), Arc::clone(&start));
            let barrier = StartBarrier { index, exists, reached: Cell::new(false), start };
            let (work, done, end) = (Arc::clone(&work), done.clone(), Arc::clone(&end));
            running.push(Builder::new().name(format!("launcher-{index}")).spawn(move || {
                let _ = done.send(work(&barrier));
                drop(barrier);
                end.wait();
            })?);
        }
        drop((exists, done));
        let mut tids = Vec::new();
        for tid in existing.iter().take(count) {
            match tid {
                Some(tid) => tids.push(tid),
                None => {
                    results.recv()??;
                    bail!("a thread ended before its work");
                }
            }
        }
        ready(common, &tids, &json!({}))?;
        start.wait();
        Ok(Self { running, results, end })
    }

    /// The threads' results, in no particular order.
    pub(crate) fn results(&self) -> Result<Vec<Value>> {
        self.results.iter().take(self.running.len()).collect()
    }

    /// Prints the result, holds if asked to, and ends the threads.
    pub(crate) fn finish(self, common: &Common, result: &Value) -> Result<()> {
        finish(common, result)?;
        self.end.wait();
        for thread in self.running {
            if thread.join().is_err() {
                bail!("a thread panicked");
            }
        }
        Ok(())
    }
}
