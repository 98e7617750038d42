//! Detects possible changes of a file by watching its folder, since editors and Kubernetes replace the file or a symbolic link.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, EventKind};
use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

/// A file may be written in pieces: its folder must have been quiet for this time.
const QUIET: Duration = Duration::from_millis(100);
/// Debounce limit, for a folder that is never quiet.
const MAX_DEBOUNCE: Duration = Duration::from_secs(1);

/// The watched folders.
#[derive(Debug)]
pub(super) struct FolderWatch {
    watcher: Option<RecommendedWatcher>,
    folders: BTreeSet<PathBuf>,
    events: Arc<Notify>,
}

impl FolderWatch {
    pub(super) fn new() -> Self {
        let events = Arc::new(Notify::new());
        let notify = Arc::clone(&events);
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if event.as_ref().map_or(true, |event| may_change(&event.kind)) {
                notify.notify_one();
            }
        });
        let watcher = watcher.inspect_err(|error| {
            tracing::warn!(%error, "cannot watch folders; the configuration file is polled");
        });
        Self { watcher: watcher.ok(), folders: BTreeSet::new(), events }
    }

    /// Watches the folder of this file, and that of its link target. To be called regularly: a link may change, and a folder
    /// may be deleted and created again.
    pub(super) fn follow(&mut self, file: &Path) {
        let Some(watcher) = &mut self.watcher else { return };
        let real = file.canonicalize().ok();
        let folders: BTreeSet<PathBuf> =
            [Some(file), real.as_deref()].into_iter().flatten().filter_map(folder_of).collect();
        for gone in self.folders.difference(&folders) {
            // Most likely it was deleted.
            let _ = watcher.unwatch(gone);
        }
        for folder in &folders {
            if let Err(error) = watcher.watch(folder, RecursiveMode::NonRecursive)
                && !self.folders.contains(folder)
            {
                tracing::warn!(folder = %folder.display(), %error, "cannot watch a folder; the configuration file is polled");
            }
        }
        self.folders = folders;
    }

    /// Waits for an event, and then until the folders are quiet.
    pub(super) async fn changed(&self) {
        self.events.notified().await;
        let end = Instant::now() + MAX_DEBOUNCE;
        let quiet = async { while timeout(QUIET, self.events.notified()).await.is_ok() {} };
        let _ = timeout_at(end, quiet).await;
    }
}

fn folder_of(file: &Path) -> Option<PathBuf> {
    let folder = file.parent()?;
    Some(if folder.as_os_str().is_empty() { Path::new(".") } else { folder }.to_owned())
}

/// Ignores that a file is opened or read, as this program does itself.
fn may_change(kind: &EventKind) -> bool {
    match kind {
        EventKind::Access(access) => *access == AccessKind::Close(AccessMode::Write),
        _ => true,
    }
}
