use super::*;
use crate::export::tests::{BEGIN, MS, MadeUp};
use gpucause_trace::recording::Event;

fn chosen(made_up: &MadeUp, selection: &Selection) -> (u64, u64) {
    let (written, _) = made_up.exported(selection);
    let written = written.unwrap();
    (written.events, written.chains)
}

#[test]
fn everything_is_chosen_unless_something_is_asked_for() {
    assert_eq!(chosen(&MadeUp::two_nodes(), &Selection::default()), (18, 1));
}

#[test]
fn a_pid_chooses_the_processes_of_every_node_that_have_it() {
    let mut made_up = MadeUp::two_nodes();
    let with_pid = |pid| Selection { pid: Some(pid), ..Selection::default() };
    assert_eq!(chosen(&made_up, &with_pid(100)), (18, 1));
    made_up.processes[1].pid = 200;
    assert_eq!(chosen(&made_up, &with_pid(200)), (9, 0));
    assert_eq!(chosen(&made_up, &with_pid(100)), (9, 1));
}

#[test]
fn an_unknown_pid_is_an_error_that_lists_the_recorded_ones() {
    let selection = Selection { pid: Some(5), ..Selection::default() };
    let (written, out) = MadeUp::new().exported(&selection);
    let said = written.unwrap_err().to_string();
    assert_eq!(
        said,
        "the recording has no process with PID 5 - name one that it has: trainer (100)"
    );
    assert!(out.is_empty());
}

#[test]
fn times_and_lengths_choose_events_and_times_choose_chains() {
    let made_up = MadeUp::two_nodes();
    let long = Selection { at_least_ns: 5 * MS, ..Selection::default() };
    assert_eq!(chosen(&made_up, &long), (6, 1));
    let early = Selection { until_ns: Some(BEGIN + 41_000_000), ..Selection::default() };
    assert_eq!(chosen(&made_up, &early), (4, 0));
    let late = Selection { from_ns: Some(BEGIN + 3_600_000_000_000), ..Selection::default() };
    assert_eq!(chosen(&made_up, &late), (9, 1));
}

#[test]
fn the_last_time_is_counted_from_the_end_of_the_recording() {
    let mut made_up = MadeUp::two_nodes();
    let last = Selection { last: Some(Duration::from_secs(10)), ..Selection::default() };
    assert_eq!(chosen(&made_up, &last).0, 9);
    // A recorder that was killed did not say when: the last event does.
    made_up.sessions[1].ended_ns = None;
    let last = Selection { last: Some(Duration::from_millis(11)), ..Selection::default() };
    assert_eq!(chosen(&made_up, &last).0, 2);
}

#[test]
fn what_was_read_before_damage_is_a_whole_file() {
    let mut made_up = MadeUp::two_nodes();
    made_up.is_damaged = true;
    let (written, out) = made_up.exported(&Selection::default());
    assert!(written.unwrap_err().to_string().contains("damaged"));
    made_up.is_damaged = false;
    assert_eq!(out, made_up.exported(&Selection::default()).1);
}

#[test]
fn an_event_of_no_process_is_damage() {
    let mut made_up = MadeUp::two_nodes();
    let event = Event { process: ProcessIndex(9), ..made_up.events[0].clone() };
    made_up.events.push(event);
    let (written, _) = made_up.exported(&Selection::default());
    assert!(matches!(written, Err(ExportError::UnknownProcess(_))), "{written:?}");
}

#[test]
fn a_timestamp_is_read_as_rfc_3339_and_as_seconds() {
    let second = 1_000_000_000;
    for (text, nanos) in [
        ("1970-01-01T00:00:01Z", second),
        ("2023-11-14T22:13:20Z", BEGIN),
        ("2023-11-14 23:13:20.5+01:00", BEGIN + second / 2),
        ("2023-11-14t21:43:20.000000001-00:30", BEGIN + 1),
        ("1700000000", BEGIN),
        ("1700000000.25", BEGIN + second / 4),
    ] {
        assert_eq!(timestamp(text), Ok(nanos), "{text}");
    }
    for text in [
        "",
        "now",
        "-5",
        "5.",
        "1e9",
        "99999999999999999999",
        "2023-11-14",
        "2023-11-14T22:13:20",
        "2023-13-14T22:13:20Z",
        "2023-02-30T22:13:20Z",
        "2023-11-14T25:13:20Z",
        "2023-11-14T22:13:20+99:00",
        "2023-11-14T22:13:20+\u{e9}1:00",
        "9999-11-14T22:13:20Z",
    ] {
        assert!(timestamp(text).unwrap_err().to_string().contains("RFC 3339"), "{text}");
    }
}
