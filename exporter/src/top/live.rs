//! The view on a terminal, until a key or a signal ends it.

use std::io;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::Source;
use super::host::Host;
use super::model::{Intervals, View};
use super::screen::{Look, Scene, draw};
use super::state::{State, Wish};

/// How long a signal may wait to be noticed.
const NOTICE: Duration = Duration::from_millis(100);

/// The terminal while it shows the view. Given back as it was when this is dropped, and when a thread panics.
#[derive(Debug)]
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> io::Result<Self> {
        ratatui::try_init().map(Self)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that has gone needs no restoring.
        let _ = ratatui::try_restore();
    }
}

/// What is to be shown, and for how long.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) interval: Duration,
    /// Intervals until the end; `None` for as many as the user likes.
    pub(super) count: Option<u32>,
    pub(super) look: Look,
}

/// What is shown now.
#[derive(Debug, Default)]
struct Picture {
    view: View,
    state: State,
    host: Host,
    trouble: Option<String>,
}

impl Picture {
    /// Takes the next observation in; whether an interval has ended.
    fn take(&mut self, intervals: &mut Intervals, source: &Source<'_>) -> bool {
        self.host = source.host();
        match source.next(intervals) {
            Ok(next) => {
                self.trouble = None;
                let whole = next.elapsed.is_some();
                // Intervals go on behind a picture that is held still.
                if !self.state.paused {
                    self.view = next;
                    self.state.arrange(&mut self.view.rows);
                }
                whole
            }
            Err(error) => {
                self.trouble = Some(format!("nothing new: {error}"));
                false
            }
        }
    }

    fn draw(&self, screen: &mut Screen, look: &Look) -> io::Result<()> {
        let scene = Scene {
            view: &self.view,
            state: &self.state,
            host: &self.host,
            look,
            trouble: self.trouble.as_deref(),
        };
        screen.0.draw(|frame| draw(frame, &scene)).map(|_| ())
    }

    /// Follows what the user does; false when it is to end.
    fn follow(&mut self, event: &Event) -> bool {
        let Event::Key(key) = event else { return true };
        wish(*key).is_none_or(|wish| self.state.follow(wish, &mut self.view.rows))
    }
}

/// Shows what the source tells until the user quits, the intervals are over or nobody holds the other end of `stopped`.
///
/// # Errors
/// When the terminal cannot be drawn to or read from.
pub(super) fn run(source: &Source<'_>, plan: &Plan, stopped: &Receiver<()>) -> io::Result<()> {
    let mut screen = Screen::open()?;
    let mut intervals = Intervals::default();
    let mut picture = Picture::default();
    let mut due = Instant::now();
    let mut left = plan.count;
    while stopped.try_recv() != Err(TryRecvError::Disconnected) {
        if due <= Instant::now() {
            due = Instant::now() + plan.interval;
            if picture.take(&mut intervals, source) {
                left = left.map(|left| left.saturating_sub(1));
            }
            picture.draw(&mut screen, &plan.look)?;
            if left == Some(0) {
                break;
            }
        }
        if event::poll(due.saturating_duration_since(Instant::now()).min(NOTICE))? {
            if !picture.follow(&event::read()?) {
                break;
            }
            picture.draw(&mut screen, &plan.look)?;
        }
    }
    Ok(())
}

/// What a key asks for.
fn wish(key: KeyEvent) -> Option<Wish> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return matches!(key.code, KeyCode::Char('c' | 'd')).then_some(Wish::Quit);
    }
    Some(match key.code {
        KeyCode::Char('q' | 'Q') => Wish::Quit,
        KeyCode::Up | KeyCode::Char('k') => Wish::Up,
        KeyCode::Down | KeyCode::Char('j') => Wish::Down,
        KeyCode::Home => Wish::First,
        KeyCode::End => Wish::Last,
        KeyCode::Char('s') => Wish::Sort,
        KeyCode::Char('p' | ' ') => Wish::Pause,
        KeyCode::Char('?' | 'h') => Wish::Help,
        KeyCode::Enter => Wish::Detail,
        KeyCode::Esc => Wish::Back,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_ask_for_what_the_help_says() {
        let plain = |code| wish(KeyEvent::new(code, KeyModifiers::NONE));
        for (code, expected) in [
            (KeyCode::Char('q'), Some(Wish::Quit)),
            (KeyCode::Char('s'), Some(Wish::Sort)),
            (KeyCode::Char('p'), Some(Wish::Pause)),
            (KeyCode::Char('?'), Some(Wish::Help)),
            (KeyCode::Enter, Some(Wish::Detail)),
            (KeyCode::Up, Some(Wish::Up)),
            (KeyCode::Down, Some(Wish::Down)),
            (KeyCode::Char('x'), None),
        ] {
            assert_eq!(plain(code), expected, "{code:?}");
        }
        let control = |code| wish(KeyEvent::new(code, KeyModifiers::CONTROL));
        assert_eq!(control(KeyCode::Char('c')), Some(Wish::Quit));
        assert_eq!(control(KeyCode::Char('s')), None);
    }

    #[test]
    fn a_release_of_a_key_asks_for_nothing() {
        let mut key = KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE);
        key.kind = KeyEventKind::Release;
        assert_eq!(wish(key), None);
    }
}
