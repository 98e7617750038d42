//! The interactive view on a terminal, until a key or a signal ends it.

use std::io;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::host::Host;
use super::model::{Intervals, View};
use super::screen::{Appearance, DrawContext, draw};
use super::state::{Action, State};
use super::{Source, ViewOptions};

/// Between two checks for a signal.
const SIGNAL_POLL: Duration = Duration::from_millis(100);

/// The terminal while it shows the view. Restored when this is dropped and when a thread panics.
#[derive(Debug)]
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> io::Result<Self> {
        ratatui::try_init().map(Self)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A closed terminal needs no restoring.
        let _ = ratatui::try_restore();
    }
}

/// The view, and the user's choices.
#[derive(Debug, Default)]
struct ViewState {
    view: View,
    state: State,
    host: Host,
    error: Option<String>,
}

impl ViewState {
    /// Shows the next interval; returns whether one has ended.
    fn update(&mut self, intervals: &mut Intervals, source: &Source<'_>) -> bool {
        self.host = source.host();
        match source.next(intervals) {
            Ok(next) => {
                self.error = None;
                let has_ended = next.elapsed.is_some();
                // Intervals go on while the view is paused.
                if !self.state.paused {
                    self.view = next;
                    self.state.arrange(&mut self.view.rows);
                }
                has_ended
            }
            Err(error) => {
                self.error = Some(format!("cannot update: {error}"));
                false
            }
        }
    }

    fn draw(&self, screen: &mut Screen, appearance: &Appearance) -> io::Result<()> {
        let context = DrawContext {
            view: &self.view,
            state: &self.state,
            host: &self.host,
            appearance,
            error: self.error.as_deref(),
        };
        screen.0.draw(|frame| draw(frame, &context)).map(|_| ())
    }

    /// Applies the user's action; false to quit.
    fn handle(&mut self, event: &Event) -> bool {
        let Event::Key(key) = event else { return true };
        action(*key).is_none_or(|action| self.state.apply(action, &mut self.view.rows))
    }
}

/// Shows the source's views until the user quits, the intervals are over or the sender of `stopped` is dropped.
///
/// # Errors
/// When the terminal cannot be drawn to or read from.
pub(super) fn run(
    source: &Source<'_>,
    options: &ViewOptions,
    appearance: &Appearance,
    stopped: &Receiver<()>,
) -> io::Result<()> {
    let mut screen = Screen::open()?;
    let mut intervals = Intervals::default();
    let mut shown = ViewState::default();
    let mut due = Instant::now();
    let mut left = options.count;
    while stopped.try_recv() != Err(TryRecvError::Disconnected) {
        if due <= Instant::now() {
            due = Instant::now() + options.interval;
            if shown.update(&mut intervals, source) {
                left = left.map(|left| left.saturating_sub(1));
            }
            shown.draw(&mut screen, appearance)?;
            if left == Some(0) {
                break;
            }
        }
        if event::poll(due.saturating_duration_since(Instant::now()).min(SIGNAL_POLL))? {
            if !shown.handle(&event::read()?) {
                break;
            }
            shown.draw(&mut screen, appearance)?;
        }
    }
    Ok(())
}

/// The action of a key.
fn action(key: KeyEvent) -> Option<Action> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return matches!(key.code, KeyCode::Char('c' | 'd')).then_some(Action::Quit);
    }
    Some(match key.code {
        KeyCode::Char('q' | 'Q') => Action::Quit,
        KeyCode::Up | KeyCode::Char('k') => Action::Up,
        KeyCode::Down | KeyCode::Char('j') => Action::Down,
        KeyCode::Home => Action::First,
        KeyCode::End => Action::Last,
        KeyCode::Char('s') => Action::Sort,
        KeyCode::Char('p' | ' ') => Action::Pause,
        KeyCode::Char('?' | 'h') => Action::Help,
        KeyCode::Enter => Action::Detail,
        KeyCode::Esc => Action::Back,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_do_what_the_help_says() {
        let plain = |code| action(KeyEvent::new(code, KeyModifiers::NONE));
        for (code, expected) in [
            (KeyCode::Char('q'), Some(Action::Quit)),
            (KeyCode::Char('s'), Some(Action::Sort)),
            (KeyCode::Char('p'), Some(Action::Pause)),
            (KeyCode::Char('?'), Some(Action::Help)),
            (KeyCode::Enter, Some(Action::Detail)),
            (KeyCode::Up, Some(Action::Up)),
            (KeyCode::Down, Some(Action::Down)),
            (KeyCode::Char('x'), None),
        ] {
            assert_eq!(plain(code), expected, "{code:?}");
        }
        let control = |code| action(KeyEvent::new(code, KeyModifiers::CONTROL));
        assert_eq!(control(KeyCode::Char('c')), Some(Action::Quit));
        assert_eq!(control(KeyCode::Char('s')), None);
    }

    #[test]
    fn a_release_of_a_key_does_nothing() {
        let mut key = KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE);
        key.kind = KeyEventKind::Release;
        assert_eq!(action(key), None);
    }
}
