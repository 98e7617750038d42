//! Screens as text, against golden files; `GPUCAUSE_BLESS=1` rewrites them.

use gpucause_engine::observation::Period;

use super::super::model::tests::rows;
use super::super::state::Action;
use super::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use std::path::Path;

const ELAPSED: Option<Nanos> = Some(Nanos(2_000_000_000));
const READY: Host = Host {
    observation: Some(Period::attached(1_700_049_600.0)),
    ready: true,
    attached: 0,
    refused: 0,
    only: None,
    missing: false,
};

fn view() -> View {
    let mut view = View { elapsed: ELAPSED, rows: rows() };
    State::default().arrange(&mut view.rows);
    view.rows[1].facts = vec![
        ("exe", "/usr/bin/python3.12".into()),
        ("user", "ml".into()),
        ("rank", "3 of 8".into()),
    ];
    view
}

fn drawn((width, height): (u16, u16), context: &DrawContext<'_>) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, context)).unwrap();
    terminal.backend().buffer().clone()
}

fn text(buffer: &Buffer) -> String {
    let line = |cells: &[ratatui::buffer::Cell]| {
        let line: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
        format!("{}\n", line.trim_end())
    };
    buffer.content.chunks(usize::from(buffer.area.width).max(1)).map(line).collect()
}

/// The screen of this view after these keys.
fn screen(size: (u16, u16), mut view: View, actions: &[Action]) -> String {
    let mut state = State::default();
    for &action in actions {
        assert!(state.apply(action, &mut view.rows));
    }
    let appearance = Appearance::default();
    text(&drawn(
        size,
        &DrawContext {
            view: &view,
            state: &state,
            host: &READY,
            appearance: &appearance,
            error: None,
        },
    ))
}

fn assert_golden(name: &str, screen: &str) {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("src/commands/top/screen/golden").join(name);
    if std::env::var_os("GPUCAUSE_BLESS").is_some() {
        std::fs::write(&path, screen).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    assert_eq!(screen, golden, "{name}: not what {} holds:\n{screen}", path.display());
}

#[test]
fn a_wide_terminal_has_every_column() {
    assert_golden("wide.txt", &screen((160, 10), view(), &[]));
}

#[test]
fn eighty_columns_are_enough_for_the_bar_and_the_line_below_has_the_rest() {
    let screen = screen((80, 10), view(), &[Action::Down, Action::Pause]);
    assert!(screen.contains("4242 healthy: stall 1.5 % lock: pt_autograd_0"), "{screen}");
    assert_golden("narrow.txt", &screen);
}

#[test]
fn details_show_calls_culprits_and_gaps_of_the_selected_process() {
    assert_golden("detail.txt", &screen((130, 24), view(), &[Action::Down, Action::Detail]));
    assert_golden("detail_narrow.txt", &screen((80, 30), view(), &[Action::Detail]));
}

#[test]
fn the_help_takes_the_screen() {
    let screen = screen((100, 28), view(), &[Action::Help]);
    assert!(screen.starts_with("gpucause top:") && screen.contains("Esc closes"), "{screen}");
    assert!(!screen.contains("4242"));
    let small = super::help::TEXT;
    assert!(small.lines().count() <= 24 && small.lines().all(|line| line.len() <= 80), "{small}");
}

#[test]
fn the_smallest_usual_terminal_has_who_ended_the_waits_and_the_whole_stall() {
    let mut many = view();
    for n in 0..20 {
        let mut row = many.rows[0].clone();
        (row.id.0, row.numbers.pid) = (100 + n, 5000 + n);
        many.rows.push(row);
    }
    let screen = screen((80, 24), many, &[Action::Down, Action::Detail]);
    for part in [
        "4242 healthy: stall 1.5 % lock: pt_autograd_0\n",
        "WHO ENDED ITS WAITS\n    80 %",
        "FROM LAUNCH",
        "b blocked otherwise\n",
        "? help",
    ] {
        assert!(screen.contains(part), "{part:?} is missing in {screen}");
    }
}

#[test]
fn an_empty_screen_says_what_to_do() {
    let empty = View { elapsed: ELAPSED, rows: Vec::new() };
    assert_golden("empty.txt", &screen((80, 9), empty.clone(), &[Action::Detail]));
    let measuring = screen((80, 8), View::default(), &[]);
    assert!(measuring.contains("measuring") && !measuring.contains("No CUDA"), "{measuring}");
}

#[test]
fn any_size_can_be_drawn() {
    let hostile = || {
        let mut view = view();
        for n in 0..60 {
            let mut row = view.rows[0].clone();
            row.id.0 = 100 + n;
            row.numbers.comm = "\u{8a13}\u{7df4}\u{5668}\u{1f525}\u{301}".into();
            view.rows.push(row);
        }
        view
    };
    for size in [(0, 0), (1, 1), (3, 40), (500, 2), (60, 5), (80, 24), (250, 90)] {
        for actions in [&[][..], &[Action::Last, Action::Detail], &[Action::Help]] {
            let drawn = screen(size, hostile(), actions);
            assert_eq!(
                drawn.lines().count(),
                usize::from(size.1.min(size.0.saturating_mul(size.1)))
            );
        }
    }
}

#[test]
fn the_selected_row_is_in_sight_however_many_there_are() {
    let mut many = view();
    for n in 0..60 {
        let mut row = many.rows[0].clone();
        (row.id.0, row.numbers.pid) = (100 + n, 5000 + n);
        many.rows.push(row);
    }
    let screen = screen((80, 12), many, &[Action::Last]);
    assert!(screen.contains("5059 starved"), "{screen}");
}

#[test]
fn colours_come_on_top_of_the_letters() {
    let (view, state, host) = (view(), State::default(), READY);
    let screen = |colour| {
        let appearance = &Appearance { colour, heading: Vec::new() };
        drawn(
            (160, 10),
            &DrawContext { view: &view, state: &state, host: &host, appearance, error: None },
        )
    };
    let (coloured, plain) = (screen(true), screen(false));
    assert_eq!(text(&coloured), text(&plain));
    let has = |buffer: &Buffer, colour| buffer.content.iter().any(|cell| cell.bg == colour);
    assert!(has(&coloured, Color::Red) && has(&coloured, Color::Green));
    assert!(plain.content.iter().all(|cell| cell.bg == Color::Reset && cell.fg == Color::Reset));
}

#[test]
fn the_observation_state_is_above_the_table() {
    let (view, state, appearance) = (view(), State::default(), Appearance::default());
    let observation = Some(Period::disabled(1_700_049_600.0, "SIGUSR1"));
    let host = Host { observation, ..READY };
    let context = DrawContext {
        view: &view,
        state: &state,
        host: &host,
        appearance: &appearance,
        error: None,
    };
    let screen = text(&drawn((120, 12), &context));
    let state_line = "\nobservation: disabled since 2023-11-15 12:00:00 UTC: nothing is observed (SIGUSR1)\n    PID";
    assert!(screen.contains(state_line), "{screen}");
}

#[test]
fn a_heading_and_an_error_have_their_lines() {
    let (view, state) = (view(), State::default());
    let appearance =
        Appearance { colour: false, heading: vec!["Metrics: http://localhost:9400".into()] };
    let error = Some("cannot update: cannot read the map `procs`");
    let context =
        DrawContext { view: &view, state: &state, host: &READY, appearance: &appearance, error };
    let screen = text(&drawn((160, 12), &context));
    assert!(screen.starts_with("Metrics: http://localhost:9400\n"), "{screen}");
    assert!(screen.contains("cannot update"));
}
