//! A semaphore that is fair between clients. Each client has its own queue, and at most as many of its requests as there are
//! permits are in the common queue. A client's queue is bounded; when it is full, a new request evicts the oldest one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::server_pool::ClientId;

/// Requests of one client that wait.
const MAX_QUEUE: u64 = 32;

#[derive(Debug)]
pub(super) struct FairSemaphore {
    size: AtomicU32,
    common: Arc<Semaphore>,
    queues: Mutex<HashMap<ClientId, Queue>>,
    /// Cloned by each request that waits.
    waiting: Arc<()>,
}

#[derive(Debug)]
struct Queue {
    /// Has as many permits as the common semaphore.
    own: Arc<Semaphore>,
    /// Requests so far.
    arrived: watch::Sender<u64>,
}

/// A permit, returned on drop.
#[derive(Debug)]
pub struct Permit {
    pub(super) own: OwnedSemaphorePermit,
    pub(super) common: OwnedSemaphorePermit,
}

impl FairSemaphore {
    pub(super) fn new(size: u32) -> Self {
        let common = Arc::new(Semaphore::new(size as usize));
        Self { size: size.into(), common, queues: Mutex::default(), waiting: Arc::default() }
    }

    /// Waits for a permit. `None` when too many newer requests of the client wait.
    pub(super) async fn acquire(&self, client: ClientId) -> Option<Permit> {
        let _waiting = Arc::clone(&self.waiting);
        let (own, mut arrived) = self.queue(client);
        let evicted_at = *arrived.borrow() + MAX_QUEUE;
        let permit = async {
            let own = own.acquire_owned().await.ok()?;
            Some(Permit { own, common: Arc::clone(&self.common).acquire_owned().await.ok()? })
        };
        tokio::select! {
            biased;
            permit = permit => permit,
            // A queue that was replaced counts no more arrivals.
            Ok(_) = arrived.wait_for(|arrived| *arrived >= evicted_at) => None,
        }
    }

    /// Returns true if a request waits for a permit.
    pub(super) fn has_waiting(&self) -> bool {
        Arc::strong_count(&self.waiting) > 1
    }

    /// Changes the number of permits. Excess permits in use are removed when they are dropped. Must be called within the runtime
    /// that serves.
    pub(super) fn resize(&self, size: u32) {
        let previous = self.size.swap(size, Ordering::Relaxed);
        if size == previous {
            return;
        }
        // Clients get queues of the new size.
        self.queues().clear();
        if size >= previous {
            self.common.add_permits((size - previous) as usize);
            return;
        }
        let common = Arc::clone(&self.common);
        tokio::spawn(async move {
            if let Ok(permits) = common.acquire_many_owned(previous - size).await {
                permits.forget();
            }
        });
    }

    /// The queue of this client, and the count of its requests.
    fn queue(&self, client: ClientId) -> (Arc<Semaphore>, watch::Receiver<u64>) {
        let mut queues = self.queues();
        // Waiting requests and permits hold clones.
        queues.retain(|_, queue| Arc::strong_count(&queue.own) > 1);
        let queue = queues.entry(client).or_insert_with(|| {
            let size = self.size.load(Ordering::Relaxed) as usize;
            Queue { own: Arc::new(Semaphore::new(size)), arrived: watch::Sender::new(0) }
        });
        queue.arrived.send_modify(|arrived| *arrived += 1);
        let own = (Arc::clone(&queue.own), queue.arrived.subscribe());
        drop(queues);
        own
    }

    fn queues(&self) -> MutexGuard<'_, HashMap<ClientId, Queue>> {
        self.queues.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    fn client(n: u8) -> ClientId {
        ClientId::of([127, 0, 0, n].into())
    }

    fn now<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_client_with_one_request_is_next_however_many_another_client_queues() {
        let semaphore = FairSemaphore::new(1);
        let first = now(pin!(semaphore.acquire(client(1)))).unwrap();
        let mut crowd: Vec<_> = (0..20).map(|_| Box::pin(semaphore.acquire(client(1)))).collect();
        assert!(crowd.iter_mut().all(|one| now(one.as_mut()).is_none()));
        let mut single = pin!(semaphore.acquire(client(2)));
        assert!(now(single.as_mut()).is_none());
        drop(first);
        assert!(crowd.iter_mut().all(|one| now(one.as_mut()).is_none()));
        let permit = now(single.as_mut()).unwrap();
        drop(permit);
        assert!(now(crowd[0].as_mut()).flatten().is_some());
    }

    #[test]
    fn the_oldest_request_of_a_client_that_has_too_many_is_refused_and_the_newest_is_not() {
        let semaphore = FairSemaphore::new(1);
        let first = now(pin!(semaphore.acquire(client(1)))).unwrap();
        let mut crowd: Vec<_> =
            (0..=MAX_QUEUE).map(|_| Box::pin(semaphore.acquire(client(1)))).collect();
        assert!(crowd.iter_mut().all(|one| now(one.as_mut()).is_none()));
        assert!(now(crowd[0].as_mut()).is_some_and(|refused| refused.is_none()));
        assert!(crowd[1..].iter_mut().all(|one| now(one.as_mut()).is_none()));
        drop(first);
        assert!(now(crowd[1].as_mut()).flatten().is_some());
    }

    #[test]
    fn a_cancelled_request_delays_nobody_and_leaves_no_state() {
        let semaphore = FairSemaphore::new(1);
        let first = now(pin!(semaphore.acquire(client(1)))).unwrap();
        let mut next = Box::pin(semaphore.acquire(client(2)));
        {
            let mut gone = pin!(semaphore.acquire(client(3)));
            assert!(now(gone.as_mut()).is_none() && now(next.as_mut()).is_none());
            assert!(semaphore.has_waiting());
        }
        // It is next, and is cancelled before it is polled.
        drop(first);
        drop(next);
        assert!(!semaphore.has_waiting());
        assert!(now(pin!(semaphore.acquire(client(1)))).is_some());
        assert_eq!(semaphore.queues().len(), 1);
    }

    #[tokio::test]
    async fn added_permits_are_free_at_once_and_removed_ones_go_when_they_are_dropped() {
        let semaphore = FairSemaphore::new(1);
        let first = now(pin!(semaphore.acquire(client(1)))).unwrap();
        let mut second = pin!(semaphore.acquire(client(1)));
        assert!(now(second.as_mut()).is_none());
        semaphore.resize(2);
        let mut third = pin!(semaphore.acquire(client(1)));
        let third = now(third.as_mut()).unwrap();
        semaphore.resize(1);
        tokio::task::yield_now().await;
        drop(third);
        tokio::task::yield_now().await;
        assert!(now(pin!(semaphore.acquire(client(1)))).is_none());
        drop(first);
        assert!(now(second.as_mut()).flatten().is_some());
    }
}
