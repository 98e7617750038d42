//! Which of the open connections are served: of one client only so many at a time, the others wait, and one that does
//! nothing makes room for one that may. So neither can a client take all connections, nor can slow ones keep others out.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, timeout};

/// For how long a connection may do nothing while another wants its place.
const PATIENCE: Duration = Duration::from_millis(500);
/// Between two looks of one that waits.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Connections that are closed at a time when there is no room for more.
const SHOWN_OUT: usize = 64;

/// A client: an address, or the network that an IPv6 host has for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Group(IpAddr);

impl Group {
    pub(super) fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) if !address.is_loopback() => {
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)))
            }
            address => address,
        })
    }
}

/// A connection that is served.
#[derive(Debug)]
pub(super) struct Guest {
    begin: Instant,
    /// Milliseconds from `begin` to when it last got on.
    since: AtomicU64,
    /// Whether a response is being made, which is not the client's doing.
    busy: AtomicBool,
    leaving: AtomicBool,
    leave: Notify,
}

impl Guest {
    fn new() -> Self {
        Self {
            begin: Instant::now(),
            since: AtomicU64::new(0),
            busy: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            leave: Notify::new(),
        }
    }

    /// The client has taken something.
    pub(super) fn got_on(&self) {
        let since = self.begin.elapsed().as_millis().try_into().unwrap_or(u64::MAX);
        self.since.store(since, Ordering::Relaxed);
    }

    /// Whether a response is being made.
    pub(super) fn set_busy(&self, busy: bool) {
        self.got_on();
        self.busy.store(busy, Ordering::Relaxed);
    }

    /// When it has to leave for others.
    pub(super) async fn told_to_leave(&self) {
        self.leave.notified().await;
    }

    /// For how long it has done nothing, or `None` while it is busy or already on its way.
    fn idle(&self) -> Option<Duration> {
        if self.busy.load(Ordering::Relaxed) || self.leaving.load(Ordering::Relaxed) {
            return None;
        }
        let since = Duration::from_millis(self.since.load(Ordering::Relaxed));
        Some(self.begin.elapsed().saturating_sub(since))
    }

    fn show_out(&self) {
        self.leaving.store(true, Ordering::Relaxed);
        self.leave.notify_one();
    }
}

struct Waiting {
    since: Instant,
    call: oneshot::Sender<Seat>,
}

#[derive(Default)]
struct Party {
    seated: Vec<Arc<Guest>>,
    /// The one that waits longest is first.
    waiting: VecDeque<Waiting>,
}

impl Party {
    fn size(&self) -> usize {
        self.seated.len() + self.waiting.len()
    }

    /// Shows out those that have done nothing for longest.
    fn press(&self, most: usize) {
        let mut idle: Vec<_> =
            self.seated.iter().filter_map(|guest| Some((guest.idle()?, guest))).collect();
        idle.retain(|(time, _)| *time >= PATIENCE);
        idle.sort_by_key(|(time, _)| std::cmp::Reverse(*time));
        idle.into_iter().take(most).for_each(|(_, guest)| guest.show_out());
    }
}

/// Where connections wait for their seat.
pub(super) struct Lobby {
    parties: Mutex<HashMap<Group, Party>>,
    seats: usize,
}

/// A place among the connections of a client that are served.
pub(super) struct Seat {
    lobby: Arc<Lobby>,
    group: Group,
    guest: Arc<Guest>,
}

impl Seat {
    pub(super) fn guest(&self) -> &Arc<Guest> {
        &self.guest
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.lobby.leave(self.group, &self.guest);
    }
}

impl Lobby {
    /// One in which each client has so many seats.
    pub(super) fn new(seats: usize) -> Self {
        Self { parties: Mutex::default(), seats }
    }

    /// A seat, or `None` when none gets free in time.
    pub(super) async fn enter(self: Arc<Self>, group: Group, patience: Duration) -> Option<Seat> {
        let mut call = {
            let mut parties = self.parties();
            let party = parties.entry(group).or_default();
            if party.seated.len() < self.seats {
                return Some(self.seat(group, party));
            }
            let (call, called) = oneshot::channel();
            // Those whose time was up are gone.
            party.waiting.retain(|waiting| !waiting.call.is_closed());
            party.waiting.push_back(Waiting { since: Instant::now(), call });
            called
        };
        let waiting = async {
            loop {
                tokio::select! {
                    seat = &mut call => return seat.ok(),
                    () = sleep(LOOK_EVERY) => self.press(group),
                }
            }
        };
        timeout(patience, waiting).await.ok().flatten()
    }

    /// Closes connections of the client that has most, since there is no room for another one.
    pub(super) fn make_room(&self) {
        let mut parties = self.parties();
        let Some(party) = parties.values_mut().max_by_key(|party| party.size()) else { return };
        let late = party.waiting.iter().take_while(|w| w.since.elapsed() >= PATIENCE).count();
        if late == 0 {
            party.press(1);
        }
        // Whoever finds its sender gone leaves.
        party.waiting.drain(..late.min(SHOWN_OUT));
    }

    fn press(&self, group: Group) {
        if let Some(party) = self.parties().get(&group) {
            party.press(1);
        }
    }

    fn parties(&self) -> MutexGuard<'_, HashMap<Group, Party>> {
        self.parties.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seat(self: &Arc<Self>, group: Group, party: &mut Party) -> Seat {
        let guest = Arc::new(Guest::new());
        party.seated.push(Arc::clone(&guest));
        Seat { lobby: Arc::clone(self), group, guest }
    }

    /// Gives the seat to the one that came last: it is the likeliest to have something to say, as those that came before
    /// it were pressed for long.
    fn leave(self: &Arc<Self>, group: Group, guest: &Arc<Guest>) {
        let next = {
            let mut parties = self.parties();
            let Some(party) = parties.get_mut(&group) else { return };
            party.seated.retain(|seated| !Arc::ptr_eq(seated, guest));
            party.waiting.retain(|waiting| !waiting.call.is_closed());
            let next = party.waiting.pop_back().map(|next| (next.call, self.seat(group, party)));
            if party.size() == 0 {
                parties.remove(&group);
            }
            next
        };
        if let Some((call, seat)) = next {
            // If it has gone meanwhile, the seat is dropped and given to another.
            drop(call.send(seat));
        }
    }
}

#[cfg(test)]
mod tests;
