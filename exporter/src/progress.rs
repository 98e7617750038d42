//! Progress of long work, with its rate and the time left, on the terminal of standard error. Where that is no terminal nothing
//! is shown.

use std::io::{self, IsTerminal as _};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use gpucause_engine::quantity::long_duration;
use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use parking_lot::Mutex;

/// Work that takes less shows nothing.
const DELAY: Duration = Duration::from_secs(1);
/// Between two updates.
const INTERVAL: Duration = Duration::from_millis(200);
const BAR: &str = "{prefix}[{bar:30}] {percent:>3} % of {amount}{rate}{left}{msg}";
const LINE: &str = "{msg}";

/// The bar that log lines must not be mixed with.
static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Shows progress until it is dropped, and leaves nothing on the terminal. There is one at a time.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    /// Dropped, it ends the wait.
    done: Option<Sender<()>>,
    appears: Option<JoinHandle<()>>,
}

/// Writes something else to standard error, with the progress out of the way.
pub(crate) fn aside<T>(write: impl FnOnce() -> T) -> T {
    let shown = SHOWN.lock().clone();
    match shown {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// Standard error for whatever may write while there is progress.
#[derive(Debug)]
pub(crate) struct Aside<W>(pub(crate) W);

impl<W: io::Write> io::Write for Aside<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        aside(|| self.0.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Progress {
    /// Returns true if progress is shown: finding out the amount of work may be work, too.
    pub(crate) fn is_shown() -> bool {
        io::stderr().is_terminal()
    }

    /// Shows the progress of work of a known amount, such as so many events.
    pub(crate) fn of(amount: u64, unit: &'static str) -> Self {
        Self::bar(amount, unit, Self::is_shown().then(ProgressDrawTarget::stderr), DELAY)
    }

    /// Shows the progress of work with a description of its own.
    pub(crate) fn line() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        let target = Self::is_shown().then(ProgressDrawTarget::stderr);
        Self::appearing(bar, &style(LINE, ""), target, Duration::ZERO)
    }

    fn bar(
        amount: u64,
        unit: &'static str,
        target: Option<ProgressDrawTarget>,
        delay: Duration,
    ) -> Self {
        let bar = ProgressBar::with_draw_target(Some(amount), ProgressDrawTarget::hidden());
        Self::appearing(bar, &style(BAR, unit), target, delay)
    }

    fn appearing(
        bar: ProgressBar,
        style: &ProgressStyle,
        target: Option<ProgressDrawTarget>,
        delay: Duration,
    ) -> Self {
        bar.set_style(style.clone());
        let Some(target) = target else { return Self { bar, done: None, appears: None } };
        *SHOWN.lock() = Some(bar.clone());
        let (done, wait) = mpsc::channel();
        let own = bar.clone();
        let appears = thread::Builder::new().name("progress".into()).spawn(move || {
            if wait.recv_timeout(delay) == Err(RecvTimeoutError::Timeout) {
                own.set_draw_target(target);
                own.enable_steady_tick(INTERVAL);
            }
        });
        // Without a thread there is no progress.
        Self { bar, done: Some(done), appears: appears.ok() }
    }

    /// So much is done.
    pub(crate) fn at(&self, done: u64) {
        self.bar.set_position(done);
    }

    /// Begins a part of the work, of such an amount.
    pub(crate) fn part(&self, name: String, amount: u64) {
        self.bar.set_length(amount);
        self.bar.set_prefix(name);
        self.bar.reset_eta();
    }

    /// Says what is done now.
    pub(crate) fn say(&self, text: String) {
        self.bar.set_message(text);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.done.take());
        if let Some(appears) = self.appears.take() {
            // Only a bug in it would make it panic, and the work is done.
            let _ = appears.join();
            *SHOWN.lock() = None;
        }
        self.bar.finish_and_clear();
    }
}

fn style(template: &str, unit: &'static str) -> ProgressStyle {
    // The templates are those above.
    let style = ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("#>.");
    style
        .with_key("amount", move |state: &ProgressState, text: &mut dyn std::fmt::Write| {
            let _ = write!(text, "{} {unit}", HumanCount(state.len().unwrap_or(0)));
        })
        .with_key("rate", |state: &ProgressState, text: &mut dyn std::fmt::Write| {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate")]
            let rate = state.per_sec() as u64;
            if rate > 0 {
                let _ = write!(text, ", {}/s", HumanCount(rate));
            }
        })
        .with_key("left", |state: &ProgressState, text: &mut dyn std::fmt::Write| {
            let seconds = state.eta().as_secs();
            if seconds > 0 {
                let _ = write!(text, ", {} left", long_duration(seconds));
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::TermLike;
    use std::sync::Arc;

    /// Keeps what is written to it.
    #[derive(Debug, Clone, Default)]
    struct Terminal(Arc<Mutex<String>>);

    impl Terminal {
        fn text(&self) -> String {
            self.0.lock().clone()
        }

        fn target(&self) -> Option<ProgressDrawTarget> {
            Some(ProgressDrawTarget::term_like(Box::new(self.clone())))
        }
    }

    impl TermLike for Terminal {
        fn width(&self) -> u16 {
            200
        }

        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(&format!("{text}\n"))
        }

        fn write_str(&self, text: &str) -> io::Result<()> {
            self.0.lock().push_str(text);
            Ok(())
        }

        fn clear_line(&self) -> io::Result<()> {
            self.write_str("<clear>")
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    fn until(what: impl Fn() -> bool) {
        let ends = std::time::Instant::now() + Duration::from_secs(10);
        while !what() {
            assert!(std::time::Instant::now() < ends);
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_bar_has_share_amount_rate_and_time_left_and_is_removed_at_the_end() {
        let terminal = Terminal::default();
        let progress = Progress::bar(10_000, "events", terminal.target(), Duration::ZERO);
        progress.part("a.db (1 of 2) ".into(), 10_000);
        for done in 1..=5_000 {
            progress.at(done);
            if done % 1_000 == 0 {
                thread::sleep(Duration::from_millis(20));
            }
        }
        until(|| terminal.text().contains(" 50 % of 10,000 events, "));
        drop(progress);
        let text = terminal.text();
        assert!(text.contains("a.db (1 of 2) [##") && text.contains("/s"), "{text}");
        assert!(text.trim_end_matches('\n').ends_with("<clear>"), "{text}");
    }

    #[test]
    fn short_work_and_work_without_a_terminal_show_nothing() {
        let terminal = Terminal::default();
        let progress = Progress::bar(2, "events", terminal.target(), Duration::from_secs(3600));
        progress.at(1);
        drop(progress);
        assert_eq!(terminal.text(), "");
        let progress = Progress::bar(2, "events", None, Duration::ZERO);
        progress.at(1);
        assert!(progress.appears.is_none() && progress.bar.is_hidden());
    }
}
