//! The table as plain text, one per interval, where standard output is no terminal.

use super::cells::fit;
use super::column::Column;
use super::host::Host;
use super::model::View;
use crate::time_shares::Part;

/// Tables between two headings.
const HEADING_EVERY: u32 = 10;
/// Cells of a line.
const WIDTH: usize = 192;

/// Formats consecutive tables.
#[derive(Debug, Default)]
pub(super) struct Printer {
    tables: u32,
    last_advice: String,
    last_state: String,
}

impl Printer {
    /// The lines for an interval. The observation state is above the columns, and printed again when it changes. Advice for an empty
    /// table is printed once.
    pub(super) fn table(&mut self, view: &View, host: &Host) -> String {
        let state = format!("observation: {}\n", host.observation_state());
        let changed = self.last_state != state;
        self.last_state.clone_from(&state);
        let rows = self.rows(view, host);
        let has_columns = !view.rows.is_empty() && (self.tables - 1).is_multiple_of(HEADING_EVERY);
        if changed || has_columns { state + &rows } else { rows }
    }

    fn rows(&mut self, view: &View, host: &Host) -> String {
        if view.rows.is_empty() {
            let advice = host.advice() + "\n";
            if self.last_advice == advice {
                return String::new();
            }
            self.last_advice.clone_from(&advice);
            return advice;
        }
        self.last_advice.clear();
        let columns = Column::that_fit(WIDTH);
        let mut text = String::new();
        if self.tables.is_multiple_of(HEADING_EVERY) {
            text += &legend();
            text += &line(&columns, |column, _| column.title().into());
        }
        self.tables += 1;
        for row in &view.rows {
            text += &line(&columns, |column, cells| column.text(row, cells));
        }
        text
    }
}

fn line(columns: &[(Column, usize)], text: impl Fn(Column, usize) -> String) -> String {
    let fields: Vec<String> = columns
        .iter()
        .map(|&(column, cells)| fit(&text(column, cells), cells, column.is_number()))
        .collect();
    format!("{}\n", fields.join(" ").trim_end())
}

/// Explains the letters of a bar.
fn legend() -> String {
    let name = |part: Part| format!("{} {}", part.letter(), part.label());
    let of = |lost| {
        let parts = Part::ALL.into_iter().filter(|part| part.is_lost() == lost);
        parts.map(name).collect::<Vec<_>>().join(", ")
    };
    format!("{}; lost: {}\n", of(false), of(true))
}

#[cfg(test)]
mod tests {
    use gpucause_engine::observation::Period;

    use super::super::model::tests::rows;
    use super::super::state::State;
    use super::*;
    use gpucause_abi::Nanos;

    fn attached() -> Host {
        let observation = Some(Period::attached(1_700_049_600.0));
        Host { ready: true, observation, ..Host::default() }
    }

    fn view() -> View {
        let mut view = View { elapsed: Some(Nanos(2_000_000_000)), rows: rows() };
        State::default().arrange(&mut view.rows);
        view
    }

    const EXPECTED: &str = "\
observation: attached since 2023-11-15 12:00:00 UTC: every launch is timed
h host code, l launching, c other calls, . waiting for the GPU, b blocked otherwise; lost: P no CPU, L lock, I io, M page fault
    PID COMM            LAUNCH/S      P50      P99 SPREAD  LOST WHERE TIME WENT                   LARGEST STALL                                        GPU MEMORY OLDEST CALL
   4243 starved              500 102.4 us   4.0 ms    39x  50 % lllllllllllllllllPPPPPPPPPPPPPPPP 50 % CPU: cpu-burner (28576, fluent-bit.service)           +0 B -
   4242 healthy             1000   5.1 us   5.1 us   1.0x 2.0 % hhl.............................L 1.5 % lock: pt_autograd_0                              +2.0 GiB 1.2 ms cudaStreamSynchronize
";

    #[test]
    fn a_table_names_its_columns_and_letters_and_the_next_one_does_not() {
        let mut printer = Printer::default();
        let first = printer.table(&view(), &attached());
        assert_eq!(first, EXPECTED);
        let next = printer.table(&view(), &attached());
        assert_eq!(next.lines().count(), 2);
        assert!(EXPECTED.ends_with(&next));
        assert!(first.lines().all(|line| line.len() <= WIDTH && !line.ends_with(' ')));
    }

    #[test]
    fn advice_for_an_empty_table_is_printed_once() {
        let (mut printer, empty) = (Printer::default(), View::default());
        let host = attached();
        assert!(printer.table(&empty, &host).contains("No CUDA process"));
        assert_eq!(printer.table(&empty, &host), "");
        printer.table(&view(), &host);
        assert!(!printer.table(&empty, &host).is_empty());
    }

    #[test]
    fn a_change_of_the_observation_state_is_printed_above_the_next_rows() {
        let mut printer = Printer::default();
        printer.table(&view(), &attached());
        let observation = Some(Period::disabled(1_700_049_660.0, "SIGUSR1"));
        let next = printer.table(&view(), &Host { observation, ..attached() });
        let state =
            "observation: disabled since 2023-11-15 12:01:00 UTC: nothing is observed (SIGUSR1)\n";
        assert!(next.starts_with(state) && next.lines().count() == 3, "{next}");
    }
}
