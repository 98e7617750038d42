use super::*;

const LONG: Duration = Duration::from_secs(10);

fn group(address: &str) -> Group {
    Group::of(address.parse().unwrap())
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
        let enter = |address| Arc::clone(&lobby).enter(group(address), Duration::from_millis(200));
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
fn the_last_to_come_gets_the_seat_that_gets_free() {
    run(async {
        let lobby = Arc::new(Lobby::new(1));
        let enter = || Arc::clone(&lobby).enter(group("192.0.2.1"), LONG);
        let seat = enter().await.unwrap();
        seat.guest().set_busy(true);
        let (early, late) = (tokio::spawn(enter()), tokio::spawn(enter()));
        while lobby.parties()[&group("192.0.2.1")].waiting.len() < 2 {
            tokio::task::yield_now().await;
        }
        drop(seat);
        let seat = late.await.unwrap().unwrap();
        assert!(!early.is_finished());
        drop(seat);
        assert!(early.await.unwrap().is_some());
    });
}

#[test]
fn one_that_does_nothing_makes_room_and_a_busy_one_does_not() {
    run(async {
        let lobby = Arc::new(Lobby::new(2));
        let enter = |patience| Arc::clone(&lobby).enter(group("192.0.2.1"), patience);
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
fn room_is_made_by_the_client_that_has_most() {
    run(async {
        let lobby = Arc::new(Lobby::new(1));
        let enter = |address| Arc::clone(&lobby).enter(group(address), LONG);
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
