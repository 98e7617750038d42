"""Heatmaps of classic histogram buckets: one row a bucket, one column a moment, the brighter the more."""

import math

import axes
import units
from fields import BadPanel

# From few to many, on dark ground.
SCHEMES = {
    "Oranges": ("#7f2704", "#d94801", "#fd8d3c", "#fdbe85", "#fff5eb"),
    "Blues": ("#08306b", "#2171b5", "#6baed6", "#bdd7e7", "#f7fbff"),
    "Greens": ("#00441b", "#238b45", "#74c476", "#bae4b3", "#f7fcf5"),
}
LEGEND = 34


def _blend(scheme, share):
    colours = SCHEMES[scheme]
    place = min(share, 0.9999) * (len(colours) - 1)
    low, high = colours[int(place)], colours[int(place) + 1]
    part = place - int(place)
    channels = [round(int(low[at : at + 2], 16) * (1 - part) + int(high[at : at + 2], 16) * part) for at in (1, 3, 5)]
    return "#" + "".join(f"{channel:02x}" for channel in channels)


def buckets(series):
    """Upper bounds in order, and what is in each bucket alone at each moment, from cumulative counts."""
    rows = sorted(((float(labels["le"]), values) for labels, values in series), key=lambda row: row[0])
    below = [0.0] * len(rows[0][1])
    alone = []
    for _, values in rows:
        known = [value if value is not None and value == value else 0.0 for value in values]
        alone.append([max(value - under, 0.0) for value, under in zip(known, below, strict=True)])
        below = known
    return [bound for bound, _ in rows], alone


def draw(panel, series, window, size):
    """HTML of the panel's body."""
    options = panel["options"]
    if options["calculate"] or options["color"]["mode"] != "scheme":
        raise BadPanel("only heatmaps of buckets, coloured by a scheme, are drawn")
    width, height = size
    height -= LEGEND
    bounds, rows = buckets(series)
    unit, scheme, exponent = options["yAxis"]["unit"], options["color"]["scheme"], options["color"]["exponent"]
    texts = [units.text(bound, unit) for bound in bounds]
    frame = axes.Frame(width, height, 14 + max(axes.width_of(text) for text in texts), window[0], window[1])
    most = max(max(row) for row in rows) or 1.0
    tall, wide = frame.height / len(rows), frame.width / max(len(window[2]) - 1, 1)
    gap = options["cellGap"] if wide > 3 else 0
    parts = frame.times()
    every = max(1, math.ceil(len(rows) * 15 / frame.height))
    for place, row in enumerate(rows):
        y = frame.bottom - (place + 1) * tall
        if place % every == 0:
            parts.append(axes.label(frame.left - 7, y + 4, texts[place], "end"))
            parts.append(axes.line(frame.left, y, frame.right, y))
        for moment, value in zip(window[2], row, strict=True):
            if value <= options["filterValues"]["le"]:
                continue
            x = max(frame.x(moment) - wide, frame.left)
            colour = _blend(scheme, (value / most) ** exponent)
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(wide - gap, 0.8):.2f}" height="{max(tall - gap, 1):.1f}"'
                f' fill="{colour}"/>'
            )
    stops = "".join(f'<i style="background:{_blend(scheme, (place + 0.5) / 24)}"></i>' for place in range(24))
    top = units.text(most, options["cellValues"]["unit"], options["cellValues"]["decimals"])
    scale = f'<div class="scale"><span>0</span><b>{stops}</b><span>{top}</span></div>'
    return f'<svg width="{width:.0f}" height="{height:.0f}">{"".join(parts)}</svg>{scale}'
