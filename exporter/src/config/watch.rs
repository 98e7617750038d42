//! Notices that a file may have changed, by watching the folder that it is in.
//!
//! The folder, since editors and Kubernetes put another file, or another symbolic link, in the place of the old one. What
//! has happened is not asked: whoever is told reads the file and sees.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, EventKind};
use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

/// A file is read when nothing has happened for so long: it may be written in pieces.
const QUIET: Duration = Duration::from_millis(100);
/// Or when so much time has passed, in a folder that is never quiet.
const PATIENCE: Duration = Duration::from_secs(1);

/// Folders under watch.
#[derive(Debug)]
pub(super) struct FolderWatch {
    watcher: Option<RecommendedWatcher>,
    folders: BTreeSet<PathBuf>,
    happened: Arc<Notify>,
}

impl FolderWatch {
    /// Of no folder yet.
    pub(super) fn new() -> Self {
        let happened = Arc::new(Notify::new());
        let telling = Arc::clone(&happened);
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if event.as_ref().map_or(true, |event| may_change(&event.kind)) {
                telling.notify_one();
            }
        });
        let watcher = watcher.inspect_err(|error| {
            tracing::warn!(%error, "folders cannot be watched; the configuration file is looked at from time to time");
        });
        Self { watcher: watcher.ok(), folders: BTreeSet::new(), happened }
    }

    /// Watches the folder of this file, and that of the file it is a link to. To be called again from time to time: the
    /// link may lead elsewhere, and a folder that was deleted and made anew is another one.
    pub(super) fn follow(&mut self, file: &Path) {
        let Some(watcher) = &mut self.watcher else { return };
        let real = file.canonicalize().ok();
        let folders: BTreeSet<PathBuf> =
            [Some(file), real.as_deref()].into_iter().flatten().filter_map(folder_of).collect();
        for gone in self.folders.difference(&folders) {
            // It is not there any more, most likely.
            let _ = watcher.unwatch(gone);
        }
        for folder in &folders {
            if let Err(error) = watcher.watch(folder, RecursiveMode::NonRecursive)
                && !self.folders.contains(folder)
            {
                tracing::warn!(folder = %folder.display(), %error, "a folder is not watched; the configuration file is looked at from time to time");
            }
        }
        self.folders = folders;
    }

    /// Done when something has happened and then nothing for a moment.
    pub(super) async fn changed(&self) {
        self.happened.notified().await;
        let end = Instant::now() + PATIENCE;
        let quiet = async { while timeout(QUIET, self.happened.notified()).await.is_ok() {} };
        // Enough waited is as good as quiet.
        let _ = timeout_at(end, quiet).await;
    }
}

fn folder_of(file: &Path) -> Option<PathBuf> {
    let folder = file.parent()?;
    Some(if folder.as_os_str().is_empty() { Path::new(".") } else { folder }.to_owned())
}

/// That a file was opened or read is told too, and is what this program does itself.
fn may_change(kind: &EventKind) -> bool {
    match kind {
        EventKind::Access(access) => *access == AccessKind::Close(AccessMode::Write),
        _ => true,
    }
}
