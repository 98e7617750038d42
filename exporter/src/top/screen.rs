//! Draws a view into a terminal.

mod detail;
mod help;

use gpucause_abi::Nanos;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};

use super::column::{self, Column};
use super::host::Host;
use super::model::{Part, Row, View};
use super::quantity::{bytes, duration, fit, width};
use super::state::State;

/// What does not change while it is shown.
#[derive(Debug, Clone, Default)]
pub(super) struct Look {
    /// Without, letters tell the parts of a bar apart, and reversed video the selected row.
    pub(super) colour: bool,
    /// Lines above the table.
    pub(super) heading: Vec<String>,
}

/// All that is drawn.
#[derive(Debug)]
pub(super) struct Scene<'a> {
    pub(super) view: &'a View,
    pub(super) state: &'a State,
    pub(super) host: &'a Host,
    pub(super) look: &'a Look,
    /// What went wrong in the last interval.
    pub(super) trouble: Option<&'a str>,
}

/// Fewer lines of details are not worth showing.
const LEAST_DETAIL: u16 = 6;
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const SELECTED: Style = Style::new().add_modifier(Modifier::REVERSED);

impl Look {
    /// The style of a cell of a bar.
    fn cell(&self, part: Part) -> Style {
        if !self.colour {
            return Style::new();
        }
        let colour = match part {
            Part::Host => Color::Blue,
            Part::Launch => Color::Green,
            Part::Calls => Color::Cyan,
            Part::Gpu => return DIM,
            Part::Preempted => Color::Red,
            Part::Futex => Color::Magenta,
            Part::Io => Color::Yellow,
            Part::PageFault => Color::LightRed,
            Part::Blocked => Color::LightMagenta,
        };
        Style::new().fg(Color::Black).bg(colour)
    }
}

/// Draws everything; what does not fit is left out from the bottom of each part.
pub(super) fn draw(frame: &mut Frame<'_>, scene: &Scene<'_>) {
    if scene.state.help {
        help::draw(frame, frame.area());
        return;
    }
    let foot_lines = foot(scene, frame.area().width);
    let foot_height = u16::try_from(foot_lines.len()).unwrap_or(u16::MAX);
    let heading = Paragraph::new(scene.look.heading.join("\n")).wrap(Wrap { trim: false });
    let heading_height = height_of(&scene.look.heading, frame.area().width);
    let rows = u16::try_from(scene.view.rows.len()).unwrap_or(u16::MAX);
    let detail = if scene.state.detail && !scene.view.rows.is_empty() {
        Constraint::Min(LEAST_DETAIL)
    } else {
        Constraint::Length(0)
    };
    let table = match detail {
        Constraint::Min(_) => Constraint::Max(rows.saturating_add(1).min(frame.area().height / 2)),
        _ => Constraint::Min(2),
    };
    let parts = [
        Constraint::Max(heading_height),
        Constraint::Length(2),
        table,
        detail,
        Constraint::Length(foot_height),
    ];
    let [above, title, table, detail, foot_area] = Layout::vertical(parts).areas(frame.area());
    frame.render_widget(heading, above);
    let observes = Line::raw(format!("observation: {}", scene.host.observes()));
    frame.render_widget(Paragraph::new(vec![title_line(scene), observes]), title);
    draw_table(frame, table, scene);
    if let Some(row) = selected(scene)
        && detail.height > 0
    {
        detail::draw(frame, detail, row, scene.view.elapsed.unwrap_or_default());
    }
    frame.render_widget(Paragraph::new(foot_lines), foot_area);
}

/// Lines that these take at this width; words that are not broken may take one more.
fn height_of(lines: &[String], cells: u16) -> u16 {
    let cells = usize::from(cells.max(1));
    let height = lines.iter().map(|line| width(line).div_ceil(cells).max(1)).sum::<usize>();
    u16::try_from(height).unwrap_or(u16::MAX)
}

fn selected<'a>(scene: &Scene<'a>) -> Option<&'a Row> {
    scene.view.rows.get(scene.state.position(&scene.view.rows))
}

fn title_line(scene: &Scene<'_>) -> Line<'static> {
    let mut line = Line::from(Span::styled("gpucause top", BOLD));
    let processes = match scene.view.rows.len() {
        1 => "1 process".to_owned(),
        many => format!("{many} processes"),
    };
    let over = match scene.view.elapsed {
        Some(elapsed) => format!("last {}", duration(Some(elapsed))),
        None => "measuring the first interval ...".into(),
    };
    line.push_span(format!("  {processes}, {over}, sorted by {}", scene.state.sort.label()));
    if scene.state.paused {
        line.push_span(Span::styled("  PAUSED", BOLD));
    }
    if let Some(trouble) = scene.trouble {
        line.push_span(format!("  {trouble}"));
    }
    line
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, scene: &Scene<'_>) {
    let rows = &scene.view.rows;
    if rows.is_empty() {
        let text = if scene.view.elapsed.is_some() || !scene.host.ready {
            scene.host.advice()
        } else {
            String::new()
        };
        frame.render_widget(Paragraph::new(format!("\n{text}")).wrap(Wrap { trim: true }), area);
        return;
    }
    let columns = Column::that_fit(usize::from(area.width));
    let mut lines = vec![line_of(&columns, BOLD, |column, _| vec![column.title().into()])];
    let height = usize::from(area.height).saturating_sub(1).max(1);
    let at = scene.state.position(rows);
    // The selected row is always among those that fit.
    let first = (at + 1).saturating_sub(height);
    for (index, row) in rows.iter().enumerate().skip(first).take(height) {
        let style = if index == at { SELECTED } else { Style::new() };
        lines.push(line_of(&columns, style, |column, cells| match column {
            Column::Bar => bar(row, cells, scene.look),
            column => vec![Span::raw(column.text(row, cells))],
        }));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

/// A line of the table; bars keep their own style.
fn line_of(
    columns: &[(Column, usize)],
    style: Style,
    content: impl Fn(Column, usize) -> Vec<Span<'static>>,
) -> Line<'static> {
    let mut line = Line::default();
    for &(column, cells) in columns {
        if !line.spans.is_empty() {
            line.push_span(Span::styled(" ", style));
        }
        let spans = content(column, cells);
        match &spans[..] {
            [only] => {
                let text = fit(&only.content, cells, column.is_number());
                let own = if column == Column::Bar { style.patch(only.style) } else { style };
                line.push_span(Span::styled(text, own));
            }
            _ => {
                let used: usize = spans.iter().map(Span::width).sum();
                line.spans.extend(spans);
                line.push_span(" ".repeat(cells.saturating_sub(used)));
            }
        }
    }
    line
}

fn bar(row: &Row, cells: usize, look: &Look) -> Vec<Span<'static>> {
    let parts = row.shares.cells(cells);
    let runs = parts.chunk_by(|a, b| a == b);
    let spans = runs.filter_map(|run| {
        let part = *run.first()?;
        Some(Span::styled(part.letter().to_string().repeat(run.len()), look.cell(part)))
    });
    // Two at least: a single one would be taken for text, and be cut off rather than shown.
    spans.chain([Span::raw(""), Span::raw("")]).collect()
}

/// The selected process in words, for what a narrow table leaves out; what the letters mean; the keys.
fn foot(scene: &Scene<'_>, cells: u16) -> Vec<Line<'static>> {
    let chosen = selected(scene).map_or_else(String::new, |row| {
        format!(
            "{} {}: culprit {}; GPU memory {}; oldest call {}",
            row.pid,
            row.comm,
            column::culprit(row),
            bytes(row.live_bytes),
            column::in_flight(row),
        )
    });
    let mut lines = vec![Line::raw(chosen)];
    let (healthy, lost) = (legend(scene.look, false), legend(scene.look, true));
    if healthy.width() + lost.width() <= usize::from(cells) {
        lines.push(Line::from([healthy.spans, lost.spans].concat()));
    } else {
        lines.extend([healthy, lost]);
    }
    lines.push(Line::styled("q quit  arrows select  Enter details  s sort  p pause  ? help", DIM));
    lines
}

/// What the letters of a bar mean: of time that is lost, or of the other.
fn legend(look: &Look, lost: bool) -> Line<'static> {
    let mut line = Line::from(Span::styled(if lost { "lost: " } else { "" }, BOLD));
    for part in Part::ALL.into_iter().filter(|part| part.is_lost() == lost) {
        line.push_span(Span::styled(part.letter().to_string(), look.cell(part)));
        line.push_span(format!(" {}  ", part.label()));
    }
    line
}

/// The share of an interval, in all threads, so possibly more than one.
fn share(time: Nanos, of: Nanos) -> Option<f64> {
    (of.0 > 0).then(|| time.0 as f64 / of.0 as f64)
}

#[cfg(test)]
mod tests;
