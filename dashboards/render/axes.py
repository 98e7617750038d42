"""Scales, ticks and the grid behind a drawing."""

import math
import time
from html import escape

import units

GRID = "rgba(204,204,220,0.09)"
FAINT = "#9a9aa8"
FONT = 11


def width_of(text, size=FONT):
    """About how wide a text is, in pixels."""
    return len(text) * size * 0.57


def nice_ticks(low, high, wanted, base=10):
    """Round numbers from low to high."""
    rough = (high - low) / max(wanted, 1)
    power = base ** math.floor(math.log(rough, base))
    steps = (1, 2, 2.5, 5, 10) if base == 10 else (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    step = next(one * power for one in steps if one * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [place * step for place in range(first, math.floor(high / step + 1e-9) + 1)]


class Linear:
    """Values to pixels."""

    def __init__(self, low, high, unit):
        if high <= low:
            high = low + (abs(low) or 1)
        self.low, self.high = low, high
        self.base = 1024 if unit in ("bytes", "mbytes") else 10

    def at(self, value):
        return (value - self.low) / (self.high - self.low)

    def ticks(self, wanted):
        return nice_ticks(self.low, self.high, wanted, self.base)


class Log:
    """Values to pixels, by powers of ten."""

    def __init__(self, low, high):
        low, high = math.log10(low), math.log10(high)
        room = max(0.3 - (high - low) / 2, 0.04)
        low, high = low - room, high + room
        self.low, self.high = low, high

    def at(self, value):
        return (math.log10(max(value, 1e-12)) - self.low) / (self.high - self.low)

    def ticks(self, wanted):
        few = self.high - self.low < 2.2
        steps = ((1, 2, 5) if wanted > 3 else (1, 3)) if few else (1,)
        powers = range(math.floor(self.low), math.ceil(self.high) + 1)
        every = 1 if few else max(1, math.ceil(len(powers) / max(wanted, 1)))
        ticks = [step * 10.0**power for power in powers if power % every == 0 for step in steps]
        return [tick for tick in ticks if -1e-9 <= self.at(tick) <= 1 + 1e-9]


def time_ticks(start, end, width):
    """Moments at round times, and their texts."""
    steps = (5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
    step = next((one for one in steps if (end - start) / one * 62 <= width), steps[-1])
    pattern = "%H:%M:%S" if step < 60 else "%H:%M"
    first = math.ceil(start / step)
    return [
        (tick * step, time.strftime(pattern, time.gmtime(tick * step))) for tick in range(first, math.floor(end / step) + 1)
    ]


def label(x, y, text, anchor="middle", colour=FAINT, size=FONT, more=""):
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" font-size="{size}" {more}>{escape(text)}</text>'
    )


def line(x1, y1, x2, y2, colour=GRID, more=""):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" {more}/>'


class Frame:
    """The part of a drawing that data lies in, with time from left to right."""

    def __init__(self, width, height, left, start, end):
        self.left, self.right, self.top, self.bottom = left, width - 10, 6, height - 20
        self.start, self.end = start, end
        self.width, self.height = self.right - self.left, self.bottom - self.top

    def x(self, moment):
        return self.left + (moment - self.start) / (self.end - self.start) * self.width

    def y(self, share):
        return self.bottom - share * self.height

    def times(self):
        parts = []
        for moment, text in time_ticks(self.start, self.end, self.width):
            x = self.x(moment)
            parts.append(line(x, self.top, x, self.bottom))
            if self.left + 10 < x < self.right - 18:
                parts.append(label(x, self.bottom + 15, text))
        return parts

    def values(self, scale, unit, decimals):
        parts = []
        for tick, text in tick_texts(scale, self.height, unit, decimals):
            y = self.y(scale.at(tick))
            parts.append(line(self.left, y, self.right, y))
            parts.append(label(self.left - 7, y + 4, text, "end"))
        return parts


def tick_texts(scale, height, unit, decimals):
    """Ticks with different texts: with as many decimals as that takes."""
    ticks = scale.ticks(max(2, height / 34))
    for places in (decimals, None):
        texts = [units.text(tick, unit, places) for tick in ticks]
        if len(set(texts)) == len(texts):
            break
    return list(zip(ticks, texts, strict=True))
