//! Which of the open connections are served: of one client only so many at a time, the others wait, and one that does
//! nothing, or has been answered one request after the other, makes room for one that may have something to ask; those that
//! have asked come before those that are still about to. So neither can a client take all connections, nor can slow or greedy
//! ones keep others out.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, timeout};

/// For how long a connection may do nothing while another wants its place.
const PATIENCE: Duration = Duration::from_millis(200);
/// Between two looks whether some can make room for those of the same client that wait.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Between two looks whether some can make room for those that are not accepted yet.
pub(super) const MAKE_ROOM_EVERY: Duration = Duration::from_millis(20);
/// Connections that are closed at a time when there is no room for more: of those that wait, and of those that are served.
const SHOWN_OUT: (usize, usize) = (32, 8);
/// A request that comes sooner than this after the last answer is one of a row.
const PAUSE: Duration = Duration::from_millis(100);

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
    /// Requests that were answered in a row.
    answered: AtomicU32,
    leaving: AtomicBool,
    leave: Notify,
    finishing: AtomicBool,
    finish: Notify,
}

impl Guest {
    pub(super) fn new() -> Self {
        Self {
            begin: Instant::now(),
            since: AtomicU64::new(0),
            busy: AtomicBool::new(false),
            answered: AtomicU32::new(0),
            leaving: AtomicBool::new(false),
            leave: Notify::new(),
            finishing: AtomicBool::new(false),
            finish: Notify::new(),
        }
    }

    /// The client has taken something.
    pub(super) fn got_on(&self) {
        let since = self.begin.elapsed().as_millis().try_into().unwrap_or(u64::MAX);
        self.since.store(since, Ordering::Relaxed);
    }

    /// Whether a response is being made.
    pub(super) fn set_busy(&self, busy: bool) {
        if !busy {
            self.answered.fetch_add(1, Ordering::Relaxed);
        } else if self.quiet() >= PAUSE {
            self.answered.store(0, Ordering::Relaxed);
        }
        self.got_on();
        self.busy.store(busy, Ordering::Relaxed);
    }

    /// How many requests were answered before this one without a pause.
    pub(super) fn answered(&self) -> u32 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Whether the answer under way is to be the last.
    pub(super) fn is_finishing(&self) -> bool {
        self.finishing.load(Ordering::Relaxed)
    }

    /// When it is to wait for nothing more.
    pub(super) async fn asked_to_finish(&self) {
        self.finish.notified().await;
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
        Some(self.quiet())
    }

    fn quiet(&self) -> Duration {
        let since = Duration::from_millis(self.since.load(Ordering::Relaxed));
        self.begin.elapsed().saturating_sub(since)
    }

    /// How much it has had, or `None` when that is nothing or it is already on its way.
    fn had(&self) -> Option<u32> {
        let on_its_way = self.is_finishing() || self.leaving.load(Ordering::Relaxed);
        Some(self.answered()).filter(|&answered| answered > 0 && !on_its_way)
    }

    fn ask_to_finish(&self) {
        self.finishing.store(true, Ordering::Relaxed);
        self.finish.notify_one();
    }

    fn show_out(&self) {
        self.leaving.store(true, Ordering::Relaxed);
        self.leave.notify_one();
    }
}

/// What becomes of a connection that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Said {
    /// It has sent all that it takes to be answered, as it seems.
    Enough,
    /// It has sent nothing, and nothing will follow.
    Goodbye,
}

struct Waiting {
    since: Instant,
    said_enough: Arc<AtomicBool>,
    call: oneshot::Sender<Seat>,
}

impl Waiting {
    fn said_enough(&self) -> bool {
        self.said_enough.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
struct Party {
    seated: Vec<Arc<Guest>>,
    /// The one that waits longest is first.
    waiting: VecDeque<Waiting>,
    pressed: Option<Instant>,
    /// Whether the next seat is that of the one that waits longest.
    from_the_front: bool,
}

impl Party {
    fn size(&self) -> usize {
        self.seated.len() + self.waiting.len()
    }

    /// Who gets the next seat: alternately the one that came last and the one that waits longest. Where many come to ask for
    /// much all are to be heard, and where they are too many, the last is as likely as any to be the one that matters.
    fn next(&mut self) -> Option<Waiting> {
        self.from_the_front = !self.from_the_front;
        loop {
            let index = if self.from_the_front {
                let last = self.waiting.len().checked_sub(1);
                self.waiting.iter().rposition(Waiting::said_enough).or(last)
            } else {
                self.waiting.iter().position(Waiting::said_enough).or(Some(0))
            };
            let next = self.waiting.remove(index?)?;
            // Those whose time was up are gone.
            if !next.call.is_closed() {
                return Some(next);
            }
        }
    }

    /// Shows out those that have done nothing for longest; then asks those to finish that have had most.
    fn press(&self, most: usize) {
        let mut idle: Vec<_> =
            self.seated.iter().filter_map(|guest| Some((guest.idle()?, guest))).collect();
        idle.retain(|(time, _)| *time >= PATIENCE);
        idle.sort_by_key(|(time, _)| std::cmp::Reverse(*time));
        idle.iter().take(most).for_each(|(_, guest)| guest.show_out());
        let left = most.saturating_sub(idle.len());
        let mut greedy: Vec<_> =
            self.seated.iter().filter_map(|guest| Some((guest.had()?, guest))).collect();
        greedy.sort_by_key(|(had, _)| std::cmp::Reverse(*had));
        greedy.into_iter().take(left).for_each(|(_, guest)| guest.ask_to_finish());
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

    /// A seat, or `None` when none gets free in time. `saying` is done when the connection has said something.
    pub(super) async fn enter(
        self: Arc<Self>,
        group: Group,
        patience: Duration,
        saying: impl Future<Output = Said>,
    ) -> Option<Seat> {
        let said_enough = Arc::new(AtomicBool::new(false));
        let mut call = {
            let mut parties = self.parties();
            let party = parties.entry(group).or_default();
            if party.seated.len() < self.seats {
                return Some(self.seat(group, party));
            }
            let (call, called) = oneshot::channel();
            let said_enough = Arc::clone(&said_enough);
            party.waiting.push_back(Waiting { since: Instant::now(), said_enough, call });
            called
        };
        let waiting = async {
            let mut saying = pin!(saying);
            loop {
                tokio::select! {
                    seat = &mut call => return seat.ok(),
                    said = saying.as_mut(), if !said_enough.load(Ordering::Relaxed) => match said {
                        Said::Enough => said_enough.store(true, Ordering::Relaxed),
                        Said::Goodbye => return None,
                    },
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
        if party.waiting.is_empty() {
            party.press(SHOWN_OUT.1);
        }
        let mut left = SHOWN_OUT.0;
        let mut asked = party.waiting.iter().filter(|waiting| waiting.said_enough()).count();
        // Whoever finds its sender gone leaves. Of those that have asked, the last to come may wait, as many as there are seats.
        party.waiting.retain(|waiting| {
            let asks = waiting.said_enough();
            let late = asked > self.seats && waiting.since.elapsed() >= PATIENCE;
            let goes = left > 0 && (!asks || late);
            left -= usize::from(goes);
            asked -= usize::from(goes && asks);
            !goes
        });
    }

    fn press(&self, group: Group) {
        let most = self.seats.div_ceil(2);
        if let Some(party) = self.parties().get_mut(&group)
            && party.pressed.is_none_or(|last| last.elapsed() >= LOOK_EVERY)
        {
            party.pressed = Some(Instant::now());
            party.waiting.retain(|waiting| !waiting.call.is_closed());
            party.press(most.min(party.waiting.len()));
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

    /// Gives the seat to the next one.
    fn leave(self: &Arc<Self>, group: Group, guest: &Arc<Guest>) {
        let next = {
            let mut parties = self.parties();
            let Some(party) = parties.get_mut(&group) else { return };
            party.seated.retain(|seated| !Arc::ptr_eq(seated, guest));
            let next = party.next();
            let next = next.map(|next| (next.call, self.seat(group, party)));
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
