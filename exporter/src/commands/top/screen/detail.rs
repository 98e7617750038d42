//! The selected process: its calls, whom it waited for, its launch gaps.

use gpucause_abi::Nanos;
use gpucause_engine::quantity::{duration, percent};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use super::super::cells::fit;
use super::super::model::{MAX_WAITS, Row, Wait};
use super::{BOLD, share};

/// Cells of the left half: as wide as its table.
const OPS_WIDTH: u16 = 78;
/// Lines of calls, with their heading, that a low terminal shows at least.
const MIN_OPS: u16 = 3;

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, row: &Row, elapsed: Nanos) {
    let [title, body] = Layout::vertical([Constraint::Length(2), Constraint::Min(0)]).areas(area);
    let facts: Vec<String> =
        row.facts.iter().map(|(name, fact)| format!("{name} {fact}")).collect();
    let about = format!("{} {}  {}", row.numbers.pid, row.numbers.comm, facts.join("  "));
    frame.render_widget(Paragraph::new(vec![Line::default(), Line::styled(about, BOLD)]), title);
    if area.width >= OPS_WIDTH + 30 {
        let halves = [Constraint::Length(OPS_WIDTH), Constraint::Length(2), Constraint::Min(0)];
        let [left, _, right] = Layout::horizontal(halves).areas(body);
        frame.render_widget(Paragraph::new(ops(row)), left);
        frame.render_widget(Paragraph::new(fitting(row, elapsed, body.height)), right);
    } else {
        let ops = ops(row);
        let least = u16::try_from(ops.len()).unwrap_or(u16::MAX).min(MIN_OPS);
        let room = body.height.saturating_sub(least);
        let waits = fitting(row, elapsed, room);
        let height = u16::try_from(waits.len()).unwrap_or(u16::MAX).min(room);
        let [above, below] =
            Layout::vertical([Constraint::Min(least), Constraint::Length(height)]).areas(body);
        frame.render_widget(Paragraph::new(ops), above);
        frame.render_widget(Paragraph::new(waits), below);
    }
}

/// The waits, as many of each list as fit into these lines.
fn fitting(row: &Row, elapsed: Nanos, height: u16) -> Vec<Line<'static>> {
    let lists = (1..=MAX_WAITS).rev().map(|most| waits(row, elapsed, most));
    let fitting = lists.into_iter().find(|lines| lines.len() <= usize::from(height));
    fitting.unwrap_or_else(|| waits(row, elapsed, 1))
}

fn ops(row: &Row) -> Vec<Line<'static>> {
    let heading = "CALL                                 CALLS  OFF CPU      P50      P99     TIME";
    let mut lines = vec![Line::styled(heading, BOLD)];
    lines.extend(row.ops.iter().map(|op| {
        Line::raw(format!(
            "{} {:>8} {:>8} {:>8} {:>8} {:>8}",
            fit(op.name, 33, false),
            op.calls,
            op.stalled,
            duration(op.p50),
            duration(op.p99),
            duration(Some(op.time)),
        ))
    }));
    if row.ops.is_empty() {
        lines.push(Line::raw("none returned in this interval"));
    }
    lines
}

fn waits(row: &Row, elapsed: Nanos, most: usize) -> Vec<Line<'static>> {
    let mut lines = vec![Line::styled("WHO HAD ITS CPU", BOLD)];
    lines.extend(listed(&row.preempted_by, elapsed, most, Wait::whom));
    lines.push(Line::styled("WHO ENDED ITS WAITS", BOLD));
    lines.extend(listed(&row.blocked_on, elapsed, most, Wait::text));
    let gap = |q| duration(row.gaps.quantile(q));
    lines.push(Line::styled("FROM LAUNCH TO LAUNCH", BOLD));
    lines.push(Line::raw(match row.gaps.count() {
        0 => "  none".to_owned(),
        count => format!("  {count} gaps, p50 {}, p99 {}", gap(0.5), gap(0.99)),
    }));
    lines
}

/// The largest, with their share of the interval.
fn listed(
    waits: &[Wait],
    elapsed: Nanos,
    most: usize,
    text: impl Fn(&Wait) -> String,
) -> Vec<Line<'static>> {
    let line = |wait: &Wait| {
        let part = percent(share(wait.time, elapsed));
        Line::raw(format!("  {part:>6} {:>8}  {}", duration(Some(wait.time)), text(wait)))
    };
    if waits.is_empty() {
        return vec![Line::raw("  nobody")];
    }
    waits.iter().take(most).map(line).collect()
}
