//! The connection pool of a server. When every slot is taken and another connection arrives, one that is idle is evicted:
//! of the client that has most connections, the one that has been idle for longest. So slow clients keep nobody out.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

/// How long a connection must have been idle to be evicted: time for a request that is on its way.
const MIN_IDLE: Duration = Duration::from_millis(200);
/// Between two attempts to evict one when none has been idle for long enough.
const RETRY_EVERY: Duration = Duration::from_millis(20);
/// How long to wait after a failed accept, such as for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A client: an IPv4 address, or the /64 network of an IPv6 address, which usually is one host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClientId(IpAddr);

impl ClientId {
    /// The one that has this address.
    pub fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) if !address.is_loopback() => {
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)))
            }
            address => address,
        })
    }
}

/// An open connection.
#[derive(Debug)]
pub struct Connection {
    /// The client's address.
    pub address: IpAddr,
    /// `None` while it cannot be evicted.
    idle_since: Mutex<Option<Instant>>,
    evicted: Notify,
    /// Connections that wait for a slot.
    waiting: Arc<AtomicU32>,
    /// Bytes of responses that were handed to the kernel.
    sent: AtomicU64,
}

impl Connection {
    /// One that is idle.
    pub fn new(address: IpAddr) -> Self {
        Self::of_pool(address, Arc::default())
    }

    fn of_pool(address: IpAddr, waiting: Arc<AtomicU32>) -> Self {
        let (idle_since, evicted) = (Mutex::new(Some(Instant::now())), Notify::new());
        Self { address, idle_since, evicted, waiting, sent: AtomicU64::new(0) }
    }

    /// Returns true if another connection waits for a slot.
    pub fn is_slot_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// The client received data: restarts the idle time, unless the connection cannot be evicted.
    pub fn has_progressed(&self) {
        if let Some(since) = &mut *self.idle_since.lock() {
            *since = Instant::now();
        }
    }

    /// So many more bytes of a response are on their way to the client, which has received what came before.
    pub fn sends(&self, bytes: u64) {
        self.sent.fetch_add(bytes, Ordering::Relaxed);
        self.has_progressed();
    }

    /// Bytes of responses so far.
    pub fn bytes_sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Is never evicted from now on.
    pub fn keep(&self) {
        *self.idle_since.lock() = None;
    }

    /// Is not evicted until the guard is dropped.
    #[must_use]
    pub fn busy(&self) -> Busy<'_> {
        self.keep();
        Busy(self)
    }
}

/// See [`Connection::busy`].
#[derive(Debug)]
pub struct Busy<'c>(&'c Connection);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        *self.0.idle_since.lock() = Some(Instant::now());
    }
}

/// The open connections of a server.
#[derive(Debug, Clone)]
pub struct Pool(Arc<State>);

type Connections = HashMap<ClientId, Vec<Arc<Connection>>>;

#[derive(Debug)]
struct State {
    size: AtomicU32,
    connections: Mutex<Connections>,
    /// A slot may have become free.
    freed: Notify,
    /// Connections that wait for a slot.
    waiting: Arc<AtomicU32>,
}

/// The slot of a connection, until dropped.
struct Slot {
    pool: Pool,
    connection: Arc<Connection>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let client = ClientId::of(self.connection.address);
        let mut connections = self.pool.0.connections.lock();
        if let Some(own) = connections.get_mut(&client) {
            own.retain(|other| !Arc::ptr_eq(other, &self.connection));
            if own.is_empty() {
                connections.remove(&client);
            }
        }
        drop(connections);
        self.pool.0.freed.notify_one();
    }
}

/// Counts a connection that waits for a slot, until dropped.
struct Waits<'w>(&'w AtomicU32);

impl<'w> Waits<'w> {
    fn new(waiting: &'w AtomicU32) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pool {
    /// One with this many slots.
    pub fn new(size: u32) -> Self {
        let (connections, freed, waiting) = (Mutex::default(), Notify::new(), Arc::default());
        Self(Arc::new(State { size: size.into(), connections, freed, waiting }))
    }

    /// Has this many slots from now on. No connection is closed for it until another arrives.
    pub fn resize(&self, size: u32) {
        self.0.size.store(size, Ordering::Relaxed);
        self.0.freed.notify_one();
    }

    /// Done when no connection is open.
    pub async fn emptied(&self) {
        while !self.0.connections.lock().is_empty() {
            self.0.freed.notified().await;
        }
    }

    /// Accepts connections and serves each in a task of its own.
    pub async fn accept<F>(
        &self,
        listener: TcpListener,
        serve: impl Fn(TcpStream, Arc<Connection>) -> F,
    ) where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let slot = self.slot(peer.ip()).await;
            let serving = serve(stream, Arc::clone(&slot.connection));
            tokio::spawn(async move {
                let Connection { address, evicted, .. } = &*slot.connection;
                let result = tokio::select! {
                    result = serving => result,
                    () = evicted.notified() => Err(io::Error::other("evicted for another connection")),
                };
                if let Err(error) = result {
                    tracing::debug!(%address, %error, "a connection ended early");
                }
            });
        }
    }

    /// A slot for another connection, for which one may be evicted.
    async fn slot(&self, address: IpAddr) -> Slot {
        let waiting = &self.0.waiting;
        let connection = Arc::new(Connection::of_pool(address, Arc::clone(waiting)));
        if self.has_taken(&connection) {
            return Slot { pool: self.clone(), connection };
        }
        let _waits = Waits::new(waiting);
        while !self.has_taken(&connection) {
            let _ = timeout(RETRY_EVERY, self.0.freed.notified()).await;
        }
        Slot { pool: self.clone(), connection }
    }

    /// Tries to take a slot, evicting connections if necessary.
    fn has_taken(&self, connection: &Arc<Connection>) -> bool {
        let mut connections = self.0.connections.lock();
        let size = self.0.size.load(Ordering::Relaxed) as usize;
        while count(&connections) >= size && evict(&mut connections) {}
        let is_free = count(&connections) < size;
        if is_free {
            let own = connections.entry(ClientId::of(connection.address)).or_default();
            own.push(Arc::clone(connection));
        }
        drop(connections);
        is_free
    }
}

fn count(connections: &Connections) -> usize {
    connections.values().map(Vec::len).sum()
}

/// Returns whether there was one to evict.
fn evict(connections: &mut Connections) -> bool {
    let idle = connections.values_mut().filter_map(|own| {
        let since = own.iter().map(|connection| *connection.idle_since.lock()).enumerate();
        let (since, index) = since.filter_map(|(index, since)| Some((since?, index))).min()?;
        (since.elapsed() >= MIN_IDLE).then_some((own.len(), Reverse(since), index, own))
    });
    let longest = idle.max_by_key(|&(count, since, ..)| (count, since));
    let Some((_, _, index, own)) = longest else { return false };
    own.swap_remove(index).evicted.notify_one();
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(test);
    }

    async fn slot(pool: &Pool, address: &str) -> Slot {
        pool.slot(address.parse().unwrap()).await
    }

    async fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
        timeout(RETRY_EVERY * 3, future).await.ok()
    }

    /// Ends when it is evicted, as a connection that is served does.
    fn served(slot: Slot) -> tokio::task::JoinHandle<()> {
        tokio::spawn(async move { slot.connection.evicted.notified().await })
    }

    #[test]
    fn hosts_of_one_ipv6_network_are_one_client_and_mapped_addresses_are_ipv4() {
        let client = |address: &str| ClientId::of(address.parse().unwrap());
        assert_eq!(client("2001:db8::1"), client("2001:db8::2"));
        assert_ne!(client("2001:db8::1"), client("2001:db8:0:1::1"));
        assert_eq!(client("::ffff:192.0.2.1"), client("192.0.2.1"));
        assert_ne!(client("192.0.2.1"), client("192.0.2.2"));
        assert_ne!(client("::1"), client("::"));
    }

    #[test]
    fn the_connection_that_is_idle_for_longest_of_the_client_that_has_most_is_evicted() {
        run(async {
            let (pool, begin) = (Pool::new(3), Instant::now());
            let few = served(slot(&pool, "192.0.2.2").await);
            let first = served(slot(&pool, "192.0.2.1").await);
            sleep(Duration::from_millis(1)).await;
            let second = served(slot(&pool, "192.0.2.1").await);
            let _another = slot(&pool, "192.0.2.3").await;
            assert!(begin.elapsed() >= MIN_IDLE - Duration::from_millis(2));
            first.await.unwrap();
            assert!(!second.is_finished() && !few.is_finished());
        });
    }

    #[test]
    fn a_busy_connection_is_not_evicted() {
        run(async {
            let pool = Pool::new(1);
            let first = slot(&pool, "192.0.2.1").await;
            let connection = Arc::clone(&first.connection);
            let first = served(first);
            let busy = connection.busy();
            assert!(timeout(MIN_IDLE * 2, slot(&pool, "192.0.2.2")).await.is_err());
            drop(busy);
            assert!(timeout(MIN_IDLE * 10, slot(&pool, "192.0.2.2")).await.is_ok());
            first.await.unwrap();
        });
    }

    #[test]
    fn slots_that_are_added_are_free_at_once_and_those_taken_away_go_as_connections_end() {
        run(async {
            let pool = Pool::new(1);
            let first = slot(&pool, "192.0.2.1").await;
            assert!(at_once(slot(&pool, "192.0.2.1")).await.is_none());
            pool.resize(2);
            let second = timeout(MIN_IDLE * 50, slot(&pool, "192.0.2.1")).await.unwrap();
            pool.resize(1);
            drop(first);
            assert!(at_once(slot(&pool, "192.0.2.1")).await.is_none());
            assert!(at_once(pool.emptied()).await.is_none());
            drop(second);
            pool.emptied().await;
        });
    }
}
