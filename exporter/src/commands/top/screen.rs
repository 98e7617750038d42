//! Draws a view into a terminal.

mod detail;
mod help;

use gpucause_abi::Nanos;
use gpucause_engine::quantity::duration;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};

use super::cells::{fit, width};
use super::column::{self, Column};
use super::host::Host;
use super::model::{Row, View};
use super::state::State;
use crate::time_shares::Part;

/// The parts of a view that do not change while it is shown.
#[derive(Debug, Clone, Default)]
pub(super) struct Appearance {
    /// Without colour, letters distinguish the parts of a bar, and reversed video the selected row.
    pub(super) colour: bool,
    /// Lines above the table.
    pub(super) heading: Vec<String>,
}

/// The input of a drawing.
#[derive(Debug)]
pub(super) struct DrawContext<'a> {
    pub(super) view: &'a View,
    pub(super) state: &'a State,
    pub(super) host: &'a Host,
    pub(super) appearance: &'a Appearance,
    /// Why the last interval is missing.
    pub(super) error: Option<&'a str>,
}

/// Lines of details that are shown at least.
const MIN_DETAIL: u16 = 6;
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const SELECTED: Style = Style::new().add_modifier(Modifier::REVERSED);

impl Appearance {
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
            Part::Lock => Color::Magenta,
            Part::Io => Color::Yellow,
            Part::PageFault => Color::LightRed,
            Part::Blocked => Color::LightMagenta,
        };
        Style::new().fg(Color::Black).bg(colour)
    }
}

/// Draws everything; what does not fit is left out from the bottom of each part.
pub(super) fn draw(frame: &mut Frame<'_>, context: &DrawContext<'_>) {
    if context.state.help {
        help::draw(frame, frame.area());
        return;
    }
    let foot_lines = foot(context, frame.area().width);
    let foot_height = u16::try_from(foot_lines.len()).unwrap_or(u16::MAX);
    let heading = Paragraph::new(context.appearance.heading.join("\n")).wrap(Wrap { trim: false });
    let heading_height = height_of(&context.appearance.heading, frame.area().width);
    let rows = u16::try_from(context.view.rows.len()).unwrap_or(u16::MAX);
    let detail = if context.state.detail && !context.view.rows.is_empty() {
        Constraint::Min(MIN_DETAIL)
    } else {
        Constraint::Length(0)
    };
    let table = match detail {
        Constraint::Min(_) => {
            Constraint::Max(rows.saturating_add(1).min((frame.area().height / 4).max(3)))
        }
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
    let state = Line::raw(format!("observation: {}", context.host.observation_state()));
    frame.render_widget(Paragraph::new(vec![title_line(context), state]), title);
    draw_table(frame, table, context);
    if let Some(row) = selected(context)
        && detail.height > 0
    {
        detail::draw(frame, detail, row, context.view.elapsed.unwrap_or_default());
    }
    frame.render_widget(Paragraph::new(foot_lines), foot_area);
}

/// Lines that these take at this width; unbroken words may take one more.
fn height_of(lines: &[String], cells: u16) -> u16 {
    let cells = usize::from(cells.max(1));
    let height = lines.iter().map(|line| width(line).div_ceil(cells).max(1)).sum::<usize>();
    u16::try_from(height).unwrap_or(u16::MAX)
}

fn selected<'a>(context: &DrawContext<'a>) -> Option<&'a Row> {
    context.view.rows.get(context.state.position(&context.view.rows))
}

fn title_line(context: &DrawContext<'_>) -> Line<'static> {
    let mut line = Line::from(Span::styled("gpucause top", BOLD));
    let processes = match context.view.rows.len() {
        1 => "1 process".to_owned(),
        many => format!("{many} processes"),
    };
    let over = match context.view.elapsed {
        Some(elapsed) => format!("last {}", duration(Some(elapsed))),
        None => "measuring the first interval ...".into(),
    };
    line.push_span(format!("  {processes}, {over}, sorted by {}", context.state.sort.label()));
    if context.state.paused {
        line.push_span(Span::styled("  PAUSED", BOLD));
    }
    if let Some(error) = context.error {
        line.push_span(format!("  {error}"));
    }
    line
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, context: &DrawContext<'_>) {
    let rows = &context.view.rows;
    if rows.is_empty() {
        let text = if context.view.elapsed.is_some() || !context.host.ready {
            context.host.advice()
        } else {
            String::new()
        };
        frame.render_widget(Paragraph::new(format!("\n{text}")).wrap(Wrap { trim: true }), area);
        return;
    }
    let columns = Column::that_fit(usize::from(area.width));
    let mut lines = vec![line_of(&columns, BOLD, |column, _| vec![column.title().into()])];
    let height = usize::from(area.height).saturating_sub(1).max(1);
    let at = context.state.position(rows);
    // The selected row is always among those that fit.
    let first = (at + 1).saturating_sub(height);
    for (index, row) in rows.iter().enumerate().skip(first).take(height) {
        let style = if index == at { SELECTED } else { Style::new() };
        lines.push(line_of(&columns, style, |column, cells| match column {
            Column::Bar => bar(row, cells, context.appearance),
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

fn bar(row: &Row, cells: usize, appearance: &Appearance) -> Vec<Span<'static>> {
    let parts = row.numbers.parts.cells(cells);
    let runs = parts.chunk_by(|a, b| a == b);
    let spans = runs.filter_map(|run| {
        let part = *run.first()?;
        Some(Span::styled(part.letter().to_string().repeat(run.len()), appearance.cell(part)))
    });
    // Two more: `line_of` fits a single span as text.
    spans.chain([Span::raw(""), Span::raw("")]).collect()
}

/// The columns of the selected process that a narrow table lacks, the legend, and the keys.
fn foot(context: &DrawContext<'_>, cells: u16) -> Vec<Line<'static>> {
    let cells = usize::from(cells);
    let chosen = selected(context).map_or_else(Default::default, |row| {
        let (pid, comm) = (row.numbers.pid, &row.numbers.comm);
        let stall = format!("{pid} {comm}: stall {}", column::culprit(row));
        let (memory, oldest) = (column::memory(row), column::in_flight(row));
        (stall, format!("GPU memory {memory} since observed; oldest call {oldest}"))
    });
    let mut lines = match chosen {
        (stall, rest) if rest.is_empty() => vec![Line::raw(stall)],
        (stall, rest) if width(&stall) + width(&rest) + 2 <= cells => {
            vec![Line::raw(format!("{stall}; {rest}"))]
        }
        (stall, rest) => vec![Line::raw(stall), Line::raw(rest)],
    };
    let whole = |gap| [false, true].map(|lost| legend(context.appearance, lost, gap));
    let [healthy, lost] = whole("  ");
    if healthy.width() + lost.width() <= cells {
        lines.push(Line::from([healthy.spans, lost.spans].concat()));
    } else {
        lines.extend(whole(" "));
    }
    lines.push(Line::styled("q quit  arrows select  Enter details  s sort  p pause  ? help", DIM));
    lines
}

/// The letters of a bar: those of lost time, or the others.
fn legend(appearance: &Appearance, lost: bool, gap: &str) -> Line<'static> {
    let mut line = Line::from(Span::styled(if lost { "lost: " } else { "" }, BOLD));
    for part in Part::ALL.into_iter().filter(|part| part.is_lost() == lost) {
        line.push_span(Span::styled(part.letter().to_string(), appearance.cell(part)));
        line.push_span(format!(" {}{gap}", part.label()));
    }
    line
}

/// The share of an interval, in all threads, so possibly more than one.
fn share(time: Nanos, of: Nanos) -> Option<f64> {
    (of.0 > 0).then(|| time.0 as f64 / of.0 as f64)
}

#[cfg(test)]
mod tests;
