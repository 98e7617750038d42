//! Whose turn it is: so many requests are worked on at a time, and those that wait are let in by client in turn, whoever
//! has asked for how much. Of one client, connections that have just been answered stand behind those that have not, and of
//! equal ones the first to come is the first to go: as many stand there as one client has seats, so that it waits for few.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::lobby::Group;

/// Where a request stands among those of its client: by how many its connection has just been answered, then by when it came.
type Place = (u32, u64);

/// The requests of one client.
#[derive(Debug, Default)]
struct Line {
    waiting: BTreeMap<Place, oneshot::Sender<Turn>>,
    inside: u32,
    /// Number of its last turn.
    last: u64,
}

#[derive(Debug)]
struct State {
    size: u32,
    inside: u32,
    /// Of turns and of places, which only grow.
    count: u64,
    lines: HashMap<Group, Line>,
}

/// A number of requests that are worked on at a time, which can change while some are.
#[derive(Debug, Clone)]
pub(super) struct Turnstile(Arc<Mutex<State>>);

/// The permission to work on a request, until dropped.
#[derive(Debug)]
pub(super) struct Turn {
    turnstile: Turnstile,
    group: Group,
}

impl Turn {
    /// Whether another request waits for a turn.
    pub(super) fn is_wanted(&self) -> bool {
        self.turnstile.is_wanted()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        {
            let mut state = self.turnstile.state();
            state.inside -= 1;
            if let Some(line) = state.lines.get_mut(&self.group) {
                line.inside -= 1;
            }
            state.forget(self.group);
        }
        self.turnstile.call();
    }
}

/// A request that waits; dropped, it waits no more.
struct Waiting<'a> {
    turnstile: &'a Turnstile,
    group: Group,
    place: Place,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.turnstile.state();
        if let Some(line) = state.lines.get_mut(&self.group) {
            line.waiting.remove(&self.place);
        }
        state.forget(self.group);
    }
}

impl State {
    fn forget(&mut self, group: Group) {
        if self.lines.get(&group).is_some_and(|line| line.inside == 0 && line.waiting.is_empty()) {
            self.lines.remove(&group);
        }
    }

    /// Who is next, if there is room: of the client that has least inside, then of the one whose last turn is longest ago.
    fn next(&mut self) -> Option<(Group, oneshot::Sender<Turn>)> {
        if self.inside >= self.size {
            return None;
        }
        let waiting = self.lines.iter_mut().filter(|(_, line)| !line.waiting.is_empty());
        let (group, line) = waiting.min_by_key(|(_, line)| (line.inside, line.last))?;
        let (_, call) = line.waiting.pop_first()?;
        self.inside += 1;
        self.count += 1;
        (line.inside, line.last) = (line.inside + 1, self.count);
        Some((*group, call))
    }
}

impl Turnstile {
    pub(super) fn new(size: u32) -> Self {
        Self(Arc::new(Mutex::new(State { size, inside: 0, count: 0, lines: HashMap::new() })))
    }

    /// A turn, once it has come. `answered` is how many requests of the connection were just answered, one after the other.
    pub(super) async fn enter(&self, group: Group, answered: u32) -> Turn {
        loop {
            let (call, called) = oneshot::channel();
            let place = {
                let mut state = self.state();
                state.count += 1;
                let place = (answered, state.count);
                state.lines.entry(group).or_default().waiting.insert(place, call);
                place
            };
            let _waiting = Waiting { turnstile: self, group, place };
            self.call();
            // It is never hung up on.
            if let Ok(turn) = called.await {
                return turn;
            }
        }
    }

    /// Whether a request waits.
    pub(super) fn is_wanted(&self) -> bool {
        self.state().lines.values().any(|line| !line.waiting.is_empty())
    }

    /// Works on so many at a time from now on. What is worked on stays; while that is more, nothing else is let in.
    pub(super) fn resize(&self, size: u32) {
        self.state().size = size;
        self.call();
    }

    /// Lets in as many as there is room for.
    fn call(&self) {
        loop {
            let Some((group, call)) = self.state().next() else { return };
            // One that has gone meanwhile drops its turn, which is then another's.
            drop(call.send(Turn { turnstile: self.clone(), group }));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    fn group(n: u8) -> Group {
        Group::of([127, 0, 0, n].into())
    }

    fn now<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_client_with_one_request_is_next_whatever_another_has_waiting() {
        let turnstile = Turnstile::new(1);
        let first = now(pin!(turnstile.enter(group(1), 0))).unwrap();
        let mut crowd: Vec<_> = (0..100).map(|_| Box::pin(turnstile.enter(group(1), 0))).collect();
        assert!(crowd.iter_mut().all(|one| now(one.as_mut()).is_none()));
        let mut single = pin!(turnstile.enter(group(2), 7));
        assert!(now(single.as_mut()).is_none());
        drop(first);
        let turn = now(single.as_mut()).unwrap();
        assert!(crowd.iter_mut().all(|one| now(one.as_mut()).is_none()));
        drop(turn);
        assert!(now(crowd[0].as_mut()).is_some());
    }

    #[test]
    fn a_connection_that_was_just_answered_stands_behind_others_of_its_client() {
        let turnstile = Turnstile::new(1);
        let first = now(pin!(turnstile.enter(group(1), 0))).unwrap();
        let [mut greedy, mut early, mut late] =
            [3, 0, 0].map(|answered| Box::pin(turnstile.enter(group(1), answered)));
        for one in [&mut greedy, &mut early, &mut late] {
            assert!(now(one.as_mut()).is_none());
        }
        drop(first);
        drop(now(early.as_mut()).unwrap());
        drop(now(late.as_mut()).unwrap());
        assert!(now(greedy.as_mut()).is_some());
    }

    #[test]
    fn one_that_waits_no_more_holds_nobody_up_and_nothing_is_kept_of_it() {
        let turnstile = Turnstile::new(1);
        let first = now(pin!(turnstile.enter(group(1), 0))).unwrap();
        let mut next = Box::pin(turnstile.enter(group(2), 0));
        {
            let mut gone = pin!(turnstile.enter(group(3), 0));
            assert!(now(gone.as_mut()).is_none() && now(next.as_mut()).is_none());
        }
        // Its turn has come, and it goes without having seen it.
        drop(first);
        drop(next);
        assert!(now(pin!(turnstile.enter(group(1), 0))).is_some());
        assert!(turnstile.state().lines.is_empty());
        assert_eq!(turnstile.state().inside, 0);
    }

    #[test]
    fn room_that_is_added_is_taken_at_once_and_room_that_is_taken_away_goes_as_it_is_left() {
        let turnstile = Turnstile::new(1);
        let first = now(pin!(turnstile.enter(group(1), 0))).unwrap();
        let mut second = pin!(turnstile.enter(group(1), 0));
        assert!(now(second.as_mut()).is_none());
        turnstile.resize(2);
        let second = now(second.as_mut()).unwrap();
        turnstile.resize(1);
        let mut third = pin!(turnstile.enter(group(1), 0));
        drop(first);
        assert!(now(third.as_mut()).is_none());
        drop(second);
        assert!(now(third.as_mut()).is_some());
    }
}
