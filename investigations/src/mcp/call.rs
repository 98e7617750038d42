//! A call of a tool while it is answered. Work that nobody waits for any more is stopped, and what cannot be stopped counts until it is
//! done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::task::{AbortHandle, JoinHandle, spawn_blocking};
use tokio::time::sleep;

use super::ToolError;

/// Between two checks whether a call is abandoned.
const CHECK_EVERY: Duration = Duration::from_millis(50);

tokio::task_local! {
    static CALL: Call;
}

/// This flag is set once nobody waits for an answer any more.
#[derive(Debug, Clone, Default)]
pub struct Abandoned(Arc<AtomicBool>);

impl Abandoned {
    /// Returns true once the flag is set.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Ends once the flag is set.
    pub(super) async fn happens(&self) {
        while !self.is_set() {
            sleep(CHECK_EVERY).await;
        }
    }

    /// The flag, which also ends a statement when it is set.
    pub(super) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}

/// Flag and permit that a call's work holds.
#[derive(Debug, Clone, Default)]
pub(super) struct Call {
    abandoned: Abandoned,
    /// Shared by the task and its blocking work: held until both are done.
    permit: Option<Arc<OwnedSemaphorePermit>>,
}

impl Call {
    /// Does the work of a call that has this permit.
    pub(super) async fn work<T>(
        abandoned: Abandoned,
        permit: OwnedSemaphorePermit,
        work: impl Future<Output = T>,
    ) -> T {
        CALL.scope(Self { abandoned, permit: Some(Arc::new(permit)) }, work).await
    }
}

/// Runs work of this call that blocks on a thread for it.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce(&Abandoned) -> T + Send + 'static,
) -> Result<T, ToolError> {
    let call = CALL.try_with(Call::clone).unwrap_or_default();
    let run = spawn_blocking(move || {
        let done = work(&call.abandoned);
        drop(call.permit);
        done
    });
    run.await.map_err(ToolError::new)
}

/// Somebody waits for the answer of a task until this is dropped.
#[derive(Debug)]
pub(super) struct Waits {
    abandoned: Abandoned,
    task: AbortHandle,
}

impl Waits {
    pub(super) fn new<T>(abandoned: Abandoned, task: &JoinHandle<T>) -> Self {
        Self { abandoned, task: task.abort_handle() }
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.abandoned.0.store(true, Ordering::Relaxed);
        self.task.abort();
    }
}
