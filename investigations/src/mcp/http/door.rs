//! Connections before it is known whose they are. Nobody holds a place among those who are let in without having shown the
//! token, and who has shown none holds up nobody else: from one address, and in all, only so many wait, and the one that has
//! waited longest makes room for the next.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Connections that wait, in all.
const MOST: usize = 128;
/// Of one address.
const MOST_OF_ONE: usize = 16;

/// The connections that wait.
#[derive(Debug, Default)]
pub(super) struct Door(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    /// By address, the oldest first.
    of: HashMap<IpAddr, VecDeque<(u64, Arc<Notify>)>>,
    all: usize,
    next: u64,
}

/// A connection that waits, until dropped.
#[derive(Debug)]
pub(super) struct Waiter {
    door: Arc<Door>,
    from: IpAddr,
    id: u64,
    sent_away: Arc<Notify>,
}

impl Door {
    /// Lets a connection wait; may send another away for it.
    pub(super) fn wait(self: &Arc<Self>, from: IpAddr) -> Waiter {
        let (from, sent_away) = (network(from), Arc::new(Notify::new()));
        let mut waiting = self.waiting();
        let id = waiting.next;
        waiting.next += 1;
        waiting.all += 1;
        let own = waiting.of.entry(from).or_default();
        own.push_back((id, Arc::clone(&sent_away)));
        if own.len() > MOST_OF_ONE {
            waiting.send_away(from);
        } else if waiting.all > MOST {
            // Who has most of them.
            let most = waiting.of.iter().max_by_key(|(_, own)| own.len());
            if let Some(most) = most.map(|(&from, _)| from) {
                waiting.send_away(most);
            }
        }
        Waiter { door: Arc::clone(self), from, id, sent_away }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn send_away(&mut self, from: IpAddr) {
        if let Some((id, oldest)) = self.of.get(&from).and_then(VecDeque::front).cloned() {
            oldest.notify_one();
            self.leave(from, id);
        }
    }

    fn leave(&mut self, from: IpAddr, id: u64) {
        let Some(own) = self.of.get_mut(&from) else { return };
        let before = own.len();
        own.retain(|(known, _)| *known != id);
        self.all -= before - own.len();
        if own.is_empty() {
            self.of.remove(&from);
        }
    }
}

impl Waiter {
    /// Done when it must make room.
    pub(super) fn sent_away(&self) -> Arc<Notify> {
        Arc::clone(&self.sent_away)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.door.waiting().leave(self.from, self.id);
    }
}

/// Whoever has one address of IPv6 has all of its network.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from(network))
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// How many of them must go.
    async fn gone(waiters: &[Waiter]) -> usize {
        let mut gone = 0;
        for waiter in waiters {
            let sent_away = waiter.sent_away();
            let notified = sent_away.notified();
            tokio::pin!(notified);
            let now = std::future::poll_fn(|cx| std::task::Poll::Ready(notified.as_mut().poll(cx)));
            gone += usize::from(now.await.is_ready());
        }
        gone
    }

    #[tokio::test]
    async fn who_has_waited_longest_of_an_address_makes_room_and_no_other_does() {
        let door = Arc::new(Door::default());
        let other = [door.wait(address("10.0.0.2"))];
        let own: Vec<_> = (0..MOST_OF_ONE + 3).map(|_| door.wait(address("10.0.0.1"))).collect();
        assert_eq!(gone(&own[..3]).await, 3);
        assert_eq!(gone(&own[3..]).await, 0);
        assert_eq!(gone(&other).await, 0);
        drop((own, other));
        assert_eq!(door.waiting().all, 0);
        assert!(door.waiting().of.is_empty());
    }

    #[tokio::test]
    async fn the_whole_is_bounded_and_a_network_of_ipv6_is_one() {
        let door = Arc::new(Door::default());
        let networks = |n: usize| address(&format!("2001:db8:0:{n:x}::{n:x}"));
        let few: Vec<_> = (0..8).map(|_| door.wait(networks(1))).collect();
        let many: Vec<_> = (0..MOST - 8).map(|n| door.wait(networks(n + 2))).collect();
        assert_eq!(gone(&few).await + gone(&many).await, 0);
        let last = [door.wait(networks(1000))];
        assert_eq!((gone(&few[..1]).await, gone(&few[1..]).await), (1, 0));
        assert_eq!(gone(&many).await + gone(&last).await, 0);
        assert_eq!(network(address("2001:db8::1")), network(address("2001:db8::ffff:1")));
        assert_eq!(network(address("::ffff:10.0.0.1")), address("10.0.0.1"));
    }
}
