//! How many get in at a time, which can change while some are in.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::turnstile::Turnstile;

/// A number of places.
#[derive(Debug, Clone)]
pub(super) struct Gate {
    places: Arc<Semaphore>,
    size: Arc<Mutex<u32>>,
}

impl Gate {
    pub(super) fn new(size: u32) -> Self {
        Self { places: Arc::new(Semaphore::new(size as usize)), size: Arc::new(Mutex::new(size)) }
    }

    /// A place, when there is one.
    pub(super) fn try_enter(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.places).try_acquire_owned().ok()
    }

    /// A place, once there is one.
    pub(super) async fn enter(&self) -> OwnedSemaphorePermit {
        loop {
            // The semaphore is never closed.
            if let Ok(place) = Arc::clone(&self.places).acquire_owned().await {
                return place;
            }
        }
    }

    /// Has so many places from now on. Whoever is in stays; while that is more than there are places, nobody gets in.
    pub(super) fn resize(&self, size: u32) {
        let before = {
            let mut current = self.size.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *current, size)
        };
        if size >= before {
            self.places.add_permits((size - before) as usize);
            return;
        }
        let places = Arc::clone(&self.places);
        tokio::spawn(async move {
            if let Ok(taken) = places.acquire_many_owned(before - size).await {
                taken.forget();
            }
        });
    }

    /// Done when nobody is in; nobody gets in any more.
    pub(super) async fn emptied(&self) {
        let size = *self.size.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(all) = self.places.acquire_many(size).await {
            all.forget();
        }
    }
}

/// The gates of a server.
#[derive(Debug, Clone)]
pub struct Gates {
    pub(super) connections: Gate,
    pub(super) scrapes: Turnstile,
}

impl Gates {
    /// Lets so many in at a time from now on. To be called within the runtime that serves.
    pub fn resize(&self, connections: u32, scrapes: u32) {
        self.connections.resize(connections);
        self.scrapes.resize(scrapes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test);
    }

    fn is_done(future: impl Future) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        matches!(pin!(future).poll(&mut context), Poll::Ready(_))
    }

    #[test]
    fn places_that_are_added_can_be_taken_at_once() {
        run(async {
            let gate = Gate::new(1);
            let _first = gate.enter().await;
            assert!(!is_done(gate.enter()));
            gate.resize(2);
            assert!(is_done(gate.enter()));
        });
    }

    #[test]
    fn places_that_are_taken_away_go_as_they_are_left() {
        run(async {
            let gate = Gate::new(3);
            let inside = [gate.enter().await, gate.enter().await, gate.enter().await];
            gate.resize(1);
            tokio::task::yield_now().await;
            let [first, second, third] = inside;
            drop((first, second));
            tokio::task::yield_now().await;
            assert!(!is_done(gate.enter()), "one is still in");
            drop(third);
            assert!(is_done(gate.enter()));
            assert!(is_done(gate.emptied()));
        });
    }
}
