//! The help: columns and keys.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::widgets::{Paragraph, Wrap};

/// Help text with 23 lines of at most 80 cells, so that it fits into the smallest usual terminal.
pub(super) const TEXT: &str = "\
gpucause top: how the processes of this host fed their GPUs   ? Esc closes this
LAUNCH/S  kernel and graph launches a second
P50, P99  of warm launches; the first launch of a kernel counts as cold
SPREAD    P99 / P50: near 1 when launches are steady, large when some are late
LOST      share of dispatcher threads' time without a CPU, or in F, I or M.
          Dispatcher threads call CUDA to feed the GPU. Data waits (b) are apart
WHERE TIME WENT   all time of dispatcher threads
          h, l, c: on a CPU. Dots: in a call that waits for the GPU, which is
          healthy. b: blocked on data, a socket, a timer or the driver, so
          starved or idle. Capitals: lost. P could have run but had no CPU;
          L lock, I disk, M page fault, outside of calls that wait for the GPU
LARGEST STALL   who took the CPU, ended the wait, or had no data ready (data:)
          for the largest part of the lost time or of the time without data, and
          its share. kernel: a timer or a device; idle: the CPU was idle
GPU MEMORY   allocated less freed since observation of the process began
OFF CPU   calls (Enter) that left the CPU at any time, as waits for the GPU do

up, down, Home, End   select a process     s   sort by the next column
Enter                 calls and waits      p   pause
q, Ctrl-C             quit                 ?   this help";

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect) {
    frame.render_widget(Paragraph::new(TEXT).wrap(Wrap { trim: false }), area);
}
