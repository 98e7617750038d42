//! The timeline: lost time and launches as curves, chains as lanes, and the same as a table.

use std::fmt::{self, Write};

use gpucause_engine::activity::{TIMELINE_SECONDS, TimelinePoint};
use gpucause_engine::chain::{Chain, Severity};
use gpucause_engine::quantity::{percent, rate};
use gpucause_engine::utc::utc;
use gpucause_investigations::html::{Text, badge};

use super::Body;

/// Columns of the curves.
const COLUMNS: usize = 180;
/// Rows of the table.
const ROWS: usize = 15;
/// Chains that have a lane.
const LANES: usize = 12;
/// Height of the curves, and of a lane, in their own units.
const HEIGHT: f64 = 100.0;
const LANE: f64 = 8.0;

/// The points of a part of the time, combined.
#[derive(Debug, Clone, Copy, Default)]
struct Column {
    seconds: f64,
    launches: f64,
    dispatcher_seconds: f64,
    lost_seconds: f64,
    chains: u32,
    worst: Option<Severity>,
}

impl Column {
    /// Adds a share of a point.
    fn add(&mut self, point: &TimelinePoint, share: f64) {
        self.seconds += point.seconds * share;
        self.launches += point.launches as f64 * share;
        self.dispatcher_seconds += point.dispatcher_seconds * share;
        self.lost_seconds += point.lost_seconds * share;
        self.chains = self.chains.max(point.chains);
        self.worst = self.worst.max(point.worst);
    }

    fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.launches / self.seconds } else { 0.0 }
    }

    fn lost(&self) -> Option<f64> {
        (self.dispatcher_seconds > 0.0).then(|| self.lost_seconds / self.dispatcher_seconds)
    }
}

/// The time that is shown.
#[derive(Debug, Clone, Copy)]
struct Axis {
    from: f64,
    until: f64,
}

impl Axis {
    fn of(points: &[TimelinePoint], is_file: bool, now: f64) -> Self {
        match (points.first(), points.last()) {
            (Some(first), Some(last)) if is_file => {
                Self { from: first.at - first.seconds, until: last.at.max(first.at) }
            }
            _ => Self { from: now - TIMELINE_SECONDS, until: now },
        }
    }

    /// From 0 to 1.
    fn at(&self, at: f64) -> f64 {
        ((at - self.from) / (self.until - self.from).max(1e-3)).clamp(0.0, 1.0)
    }

    /// The points in equal parts of the time, each in all that it overlaps; `None` where nothing was evaluated.
    fn columns(&self, points: &[TimelinePoint], count: usize) -> Vec<Option<Column>> {
        let mut columns = vec![None; count];
        for point in points {
            let begin = self.at(point.at - point.seconds) * count as f64;
            let end = self.at(point.at) * count as f64;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "from 0 to the number of columns"
            )]
            let (first, last) = (begin as usize, end.ceil() as usize);
            let length = end - begin;
            if length <= 0.0 {
                continue;
            }
            let overlapped = columns.iter_mut().enumerate().take(last).skip(first);
            for (index, column) in overlapped {
                let overlap = end.min(index as f64 + 1.0) - begin.max(index as f64);
                column.get_or_insert_with(Column::default).add(point, overlap / length);
            }
        }
        columns
    }
}

/// The timeline of the last minutes, or of a file.
pub(super) fn write(out: &mut dyn Write, body: &Body, is_file: bool) -> fmt::Result {
    let points = &body.timeline[..];
    if points.is_empty() {
        return out.write_str("<p>Nothing was evaluated in this time.</p>\n");
    }
    let axis = Axis::of(points, is_file, body.now);
    if body.processes.events_only {
        out.write_str(
            "<p>The file has single events and no accounts: its events have no curve.</p>\n",
        )?;
    } else {
        curves(out, &axis, points)?;
    }
    lanes(out, &axis, &body.chains)?;
    writeln!(
        out,
        "<p class=\"axis\"><span>{}</span><span>{} UTC</span></p>",
        utc(axis.from, is_file),
        utc(axis.until, is_file)
    )?;
    if body.processes.events_only { Ok(()) } else { table(out, &axis, points) }
}

fn curves(out: &mut dyn Write, axis: &Axis, points: &[TimelinePoint]) -> fmt::Result {
    let columns = axis.columns(points, COLUMNS);
    let lost = |own: &Column| own.lost().unwrap_or(0.0);
    let most_lost = most(&columns, lost);
    curve(out, ("Lost share of dispatcher time", &percent(Some(most_lost))), |out| {
        area(out, &columns, most_lost, lost)
    })?;
    let most_launches = most(&columns, Column::rate);
    let title = format!("{} launches/s", rate(most_launches));
    curve(out, ("Launches of all processes", &title), |out| {
        line(out, &columns, most_launches, Column::rate)
    })?;
    if columns.iter().all(Option::is_some) {
        return Ok(());
    }
    out.write_str(
        "<p class=\"dim\">In a gap no process made CUDA calls, or probes were disabled.</p>\n",
    )
}

fn most(columns: &[Option<Column>], value: impl Fn(&Column) -> f64) -> f64 {
    columns.iter().flatten().map(value).fold(0.0, f64::max)
}

fn curve(
    out: &mut dyn Write,
    (title, most): (&str, &str),
    draw: impl FnOnce(&mut dyn Write) -> fmt::Result,
) -> fmt::Result {
    write!(
        out,
        "<figure><figcaption><span>{title}</span><span>at most {most}</span></figcaption>\
         <svg class=\"plot\" viewBox=\"0 0 {COLUMNS} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"{title}, at most {most}; the table below has the numbers\">"
    )?;
    draw(out)?;
    out.write_str("</svg></figure>\n")
}

fn height(value: f64, most: f64) -> f64 {
    if most > 0.0 { HEIGHT - value / most * (HEIGHT - 4.0) } else { HEIGHT }
}

fn area(
    out: &mut dyn Write,
    columns: &[Option<Column>],
    most: f64,
    value: impl Fn(&Column) -> f64,
) -> fmt::Result {
    out.write_str("<path class=\"area\" d=\"")?;
    for (x, column) in columns.iter().enumerate() {
        let Some(column) = column.filter(|own| value(own) > 0.0) else { continue };
        write!(out, "M{x} {HEIGHT}V{:.1}h1V{HEIGHT}z", height(value(&column), most))?;
    }
    out.write_str("\"/>")
}

fn line(
    out: &mut dyn Write,
    columns: &[Option<Column>],
    most: f64,
    value: impl Fn(&Column) -> f64,
) -> fmt::Result {
    out.write_str("<path class=\"line\" d=\"")?;
    let mut draws = false;
    for (x, column) in columns.iter().enumerate() {
        if let Some(column) = column {
            let command = if draws { 'L' } else { 'M' };
            write!(out, "{command}{x} {:.1}h1", height(value(column), most))?;
        }
        draws = column.is_some();
    }
    out.write_str("\"/>")
}

/// A lane for each chain, the worst first.
fn lanes(out: &mut dyn Write, axis: &Axis, chains: &[Chain]) -> fmt::Result {
    let seen = |chain: &&Chain| chain.last_seen >= axis.from && chain.first_seen <= axis.until;
    let shown: Vec<_> = chains.iter().filter(seen).take(LANES).collect();
    if shown.is_empty() {
        return out.write_str("<p>No causal chain in the time that was evaluated.</p>\n");
    }
    out.write_str(
        "<figure><figcaption><span>Causal chains, the worst first</span></figcaption>\n",
    )?;
    for chain in shown {
        let (begin, end) = (axis.at(chain.first_seen), axis.at(chain.last_seen));
        let (x, width) = (begin * COLUMNS as f64, ((end - begin) * COLUMNS as f64).max(0.7));
        let text = format!(
            "{} of {} (PID {}), {} to {} UTC, {}",
            chain.cause,
            chain.victim.comm,
            chain.victim.pid,
            utc(chain.first_seen, false),
            utc(chain.last_seen, false),
            chain.severity
        );
        let (text, comm) = (Text(&text), Text(&chain.victim.comm));
        writeln!(
            out,
            "<div class=\"lane\">{} of {comm} ({})</div><svg class=\"plot lanes\" viewBox=\"0 0 {COLUMNS} {LANE}\" height=\"14\" preserveAspectRatio=\"none\" role=\"img\" \
             aria-label=\"{text}\"><title>{text}</title><rect class=\"{}\" x=\"{x:.1}\" y=\"1\" width=\"{width:.1}\" height=\"6\"/></svg>",
            chain.cause, chain.victim.pid, chain.severity
        )?;
    }
    out.write_str("</figure>\n")
}

/// Writes the numbers of the timeline in rows, newest first.
fn table(out: &mut dyn Write, axis: &Axis, points: &[TimelinePoint]) -> fmt::Result {
    let rows = axis.columns(points, ROWS);
    let length = (axis.until - axis.from) / ROWS as f64;
    out.write_str(
        "<details id=\"timeline-table\"><summary>The same as a table</summary><div class=\"scroll\"><table><thead><tr>\
         <th scope=\"col\">From (UTC)</th><th scope=\"col\" class=\"number\">Launches/s</th><th scope=\"col\" class=\"number\">Lost</th>\
         <th scope=\"col\" class=\"number\">Chains</th><th scope=\"col\">Worst</th></tr></thead><tbody>\n",
    )?;
    for (index, row) in rows.iter().enumerate().rev() {
        let Some(row) = row else { continue };
        writeln!(
            out,
            "<tr><th scope=\"row\">{}</th><td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td>{}</td></tr>",
            utc(axis.from + index as f64 * length, false),
            rate(row.rate()),
            percent(row.lost()),
            row.chains,
            row.worst.map_or("-", badge)
        )?;
    }
    out.write_str("</tbody></table></div></details>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(at: f64, seconds: f64) -> TimelinePoint {
        let (chains, worst) = (1, Some(Severity::Low));
        let (dispatcher_seconds, lost_seconds) = (seconds, seconds / 4.0);
        TimelinePoint {
            at,
            seconds,
            launches: 100,
            dispatcher_seconds,
            lost_seconds,
            chains,
            worst,
        }
    }

    #[test]
    fn a_point_is_divided_among_the_columns_that_it_overlaps() {
        let axis = Axis { from: 0.0, until: 10.0 };
        let columns = axis.columns(&[point(5.0, 2.5), point(10.0, 1.0)], 5);
        let launches: Vec<_> = columns.iter().map(|own| own.map(|own| own.launches)).collect();
        assert_eq!(launches, [None, Some(60.0), Some(40.0), None, Some(100.0)]);
        assert_eq!(columns[1].unwrap().rate(), 40.0);
        assert_eq!(columns[2].unwrap().lost(), Some(0.25));
    }

    #[test]
    fn points_outside_of_the_axis_and_without_length_are_left_out() {
        let axis = Axis { from: 100.0, until: 110.0 };
        let columns = axis.columns(&[point(50.0, 1.0), point(105.0, 0.0)], 5);
        assert!(columns.iter().all(Option::is_none));
    }
}
