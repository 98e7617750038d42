use super::*;

const LONG: Duration = Duration::from_secs(10);

fn group(address: &str) -> Group {
    Group::of(address.parse().unwrap())
}

/// Of a connection that says nothing.
fn silence() -> impl Future<Output = Said> + Send {
    std::future::pending()
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(test);
}

#[test]
fn hosts_of_one_ipv6_network_are_one_client_and_mapped_addresses_are_ipv4() {
    assert_eq!(group("2001:db8::1"), group("2001:db8::2"));
    assert_ne!(group("2001:db8::1"), group("2001:db8:0:1::1"));
    assert_eq!(group("::ffff:192.0.2.1"), group("192.0.2.1"));
    assert_ne!(group("192.0.2.1"), group("192.0.2.2"));
    assert_ne!(group("::1"), group("::"));
}

#[test]
fn a_client_gets_its_seats_and_no_more_while_they_are_in_use() {
    run(async {
        let lobby = Arc::new(Lobby::new(2));
        let enter = |address| {
            Arc::clone(&lobby).enter(group(address), Duration::from_millis(200), silence())
        };
        let first = enter("192.0.2.1").await.unwrap();
        let second = enter("192.0.2.1").await.unwrap();
        assert!(enter("192.0.2.1").await.is_none());
        assert!(enter("192.0.2.2").await.is_some());
        drop(first);
        assert!(enter("192.0.2.1").await.is_some());
        drop(second);
        assert!(lobby.parties().is_empty());
    });
}

#[test]
fn the_last_to_come_gets_the_seat_that_gets_free_and_the_first_the_next_one() {
    run(async {
        let lobby = Arc::new(Lobby::new(1));
        let enter = || Arc::clone(&lobby).enter(group("192.0.2.1"), LONG, silence());
        let seat = enter().await.unwrap();
        seat.guest().set_busy(true);
        let [early, middle, late] = [(); 3].map(|()| tokio::spawn(enter()));
        while lobby.parties()[&group("192.0.2.1")].waiting.len() < 3 {
            tokio::task::yield_now().await;
        }
        drop(seat);
        let seat = late.await.unwrap().unwrap();
        assert!(!early.is_finished());
        drop(seat);
        let seat = early.await.unwrap().unwrap();
        assert!(!middle.is_finished());
        drop(seat);
        assert!(middle.await.unwrap().is_some());
    });
}

#[test]
fn one_that_does_nothing_makes_room_and_a_busy_one_does_not() {
    run(async {
        let lobby = Arc::new(Lobby::new(2));
        let enter = |patience| Arc::clone(&lobby).enter(group("192.0.2.1"), patience, silence());
        let busy = enter(LONG).await.unwrap();
        busy.guest().set_busy(true);
        let idle = enter(LONG).await.unwrap();
        let leaving = tokio::spawn(async move { idle.guest().told_to_leave().await });
        let begin = Instant::now();
        let third = enter(LONG).await.unwrap();
        assert!(leaving.await.is_ok() && begin.elapsed() >= PATIENCE);
        third.guest().set_busy(true);
        assert!(enter(PATIENCE * 2).await.is_none(), "a busy one was shown out");
    });
}

#[test]
fn those_that_have_said_enough_come_first_and_those_that_have_gone_not_at_all() {
    run(async {
        let lobby = Arc::new(Lobby::new(1));
        let enter = |said: Option<Said>| {
            let saying = async move {
                match said {
                    Some(said) => said,
                    None => silence().await,
                }
            };
            tokio::spawn(Arc::clone(&lobby).enter(group("192.0.2.1"), LONG, saying))
        };
        let seat = Arc::clone(&lobby).enter(group("192.0.2.1"), LONG, silence()).await.unwrap();
        seat.guest().set_busy(true);
        let [first, enough, goodbye, last] =
            [None, Some(Said::Enough), Some(Said::Goodbye), None].map(enter);
        assert!(goodbye.await.unwrap().is_none());
        let are_waiting = || {
            let parties = lobby.parties();
            parties.values().flat_map(|p| &p.waiting).filter(|w| !w.call.is_closed()).count()
        };
        while are_waiting() < 3 {
            tokio::task::yield_now().await;
        }
        drop(seat);
        let seat = enough.await.unwrap().unwrap();
        assert!(!first.is_finished() && !last.is_finished());
        drop(seat);
        assert!(first.await.unwrap().is_some());
        assert!(last.await.unwrap().is_some());
    });
}

#[test]
fn one_that_has_been_answered_in_a_row_is_to_finish_when_another_waits() {
    run(async {
        let lobby = Arc::new(Lobby::new(1));
        let enter = |patience| Arc::clone(&lobby).enter(group("192.0.2.1"), patience, silence());
        let greedy = enter(LONG).await.unwrap();
        greedy.guest().set_busy(true);
        assert!(enter(LOOK_EVERY * 3).await.is_none(), "its first request was not answered");
        assert!(!greedy.guest().is_finishing());
        greedy.guest().set_busy(false);
        greedy.guest().set_busy(true);
        assert_eq!(greedy.guest().answered(), 1);
        let finishing = tokio::spawn(async move { greedy.guest().asked_to_finish().await });
        assert!(enter(LONG).await.is_some());
        assert!(finishing.await.is_ok());
    });
}

#[test]
fn a_pause_between_requests_ends_a_row() {
    run(async {
        let guest = Guest::new();
        for answered in 0..3 {
            guest.set_busy(true);
            assert_eq!(guest.answered(), answered);
            guest.set_busy(false);
        }
        sleep(PAUSE * 3 / 2).await;
        guest.set_busy(true);
        assert_eq!(guest.answered(), 0);
    });
}

#[test]
fn room_is_made_by_the_client_that_has_most() {
    run(async {
        let lobby = Arc::new(Lobby::new(1));
        let enter = |address| Arc::clone(&lobby).enter(group(address), LONG, silence());
        let few = enter("192.0.2.2").await.unwrap();
        let many = enter("192.0.2.1").await.unwrap();
        many.guest().set_busy(true);
        let waiting = tokio::spawn(enter("192.0.2.1"));
        sleep(PATIENCE * 3 / 2).await;
        lobby.make_room();
        assert!(waiting.await.unwrap().is_none());
        assert!(few.guest().idle().is_some(), "the other client was pressed");
    });
}
