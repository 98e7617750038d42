//! The help: columns and keys.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::widgets::{Paragraph, Wrap};

const TEXT: &str = "\
gpucause top: what the processes of this host did to feed their GPUs in the last interval

LAUNCH/S  kernel and graph launches a second
P50, P99  of warm launches; the first launch of a kernel loads it, and counts as cold
SPREAD    P99 / P50: near 1 when launches are steady, large when some are delayed
LOST      share of the launching threads' time in which they could not feed the GPU
WHERE TIME WENT
          all time of the launching threads. h, l, c: on a CPU. Dots: in a call that waits
          for the GPU, which is healthy. b: blocked on a pipe, a socket, a timer or the
          driver, so starved or idle. Capitals: lost. P could have run but had no CPU;
          F futex, I disk, M page fault, outside of calls that wait for the GPU
CULPRIT   who took the CPU, or ended the wait, for the largest part of the lost time;
          kernel: a timer or a device; idle: the CPU was idle
GPU MEMORY  allocated and not freed since the process was first seen

up, down, Home, End   select a process          s   sort by the next column
Enter                 its calls and waits       p   pause
q, Ctrl-C             quit                      ?   this help

Any of ? Esc closes this.";

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect) {
    frame.render_widget(Paragraph::new(TEXT).wrap(Wrap { trim: false }), area);
}
