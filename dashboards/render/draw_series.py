"""Time series: lines, areas, areas on top of each other, points; with thresholds and a legend."""

from html import escape

import axes
import units
from fields import colour, reduce, settings

TITLES = {"lastNotNull": "Last", "mean": "Mean", "max": "Max", "min": "Min"}
LEGEND_ROW = 21


class Series:
    """One line: its name, its values, what the panel says of it."""

    def __init__(self, panel, name, values, place):
        self.name, self.values, self.config = name, values, settings(panel, name)
        self.custom = self.config.get("custom", {})
        self.colour = colour(self.config, place)

    def text(self, value):
        return units.text(value, self.config.get("unit", "short"), self.config.get("decimals"))


def _stacked(series):
    """For each series the lower and upper edge at each moment."""
    below = [0.0] * len(series[0].values)
    edges = []
    for one in series:
        low = list(below)
        below = [
            base + (value if value is not None and value == value else 0.0)
            for base, value in zip(below, one.values, strict=True)
        ]
        edges.append((low, list(below)))
    return edges


def _runs(values):
    """Stretches of places that have a value."""
    run = []
    for place, value in enumerate(values):
        if value is not None and value == value:
            run.append(place)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _scale(panel, drawn, lines, log):
    config = panel["fieldConfig"]["defaults"]
    values = [value for edges in drawn for value in edges if value is not None and value == value]
    if log:
        positive = [value for value in values if value > 0] or [1.0]
        return axes.Log(min(positive), max([*positive, *[value for value in lines if value < max(positive) * 20]]))
    low, high = config.get("min", min(values)), max([*values, *[value for value in lines if value <= max(values) * 3 + 1e-9]])
    return axes.Linear(low, config.get("max", low + (high - low) * 1.05), config.get("unit"))


def _legend(panel, series, size):
    """Its HTML, and how much of width and height it takes."""
    options = panel["options"]["legend"]
    name = '<span class="dash" style="background:{}"></span>{}'
    calcs = options["calcs"]
    rows = ["<tr><th>Name</th>" + "".join(f"<th>{TITLES[calc]}</th>" for calc in calcs) + "</tr>"]
    for one in series:
        cells = "".join(f"<td>{one.text(reduce(one.values, calc))}</td>" for calc in calcs)
        rows.append(f'<tr><td class="name">{name.format(one.colour, escape(one.name))}</td>{cells}</tr>')
    beside = options["placement"] == "right"
    # Grafana lets a legend below have at most a part of the panel; the rest is scrolled.
    space = size[1] if beside else size[1] * 0.4
    height = min(len(rows), int(space / LEGEND_ROW)) * LEGEND_ROW
    width = options["width"] if beside else size[0]
    html = f'<div class="legend" style="height:{height}px;min-width:0"><table>{"".join(rows)}</table></div>'
    return html, (width if beside else 0), (0 if beside else height)


def draw(panel, named, window, size, marks):
    """HTML of the panel's body. `named` has pairs of name and values, `marks` the moments of annotations."""
    width, height = size
    series = [Series(panel, name, values, place) for place, (name, values) in enumerate(named)]
    legend, beside, below = _legend(panel, series, size)
    width, height = width - beside, height - below
    custom = panel["fieldConfig"]["defaults"]["custom"]
    stack, log = custom["stacking"]["mode"] != "none", custom["scaleDistribution"]["type"] == "log"
    config = panel["fieldConfig"]["defaults"]
    steps = [step for step in config.get("thresholds", {}).get("steps", []) if step["value"] is not None]
    steps = steps if custom["thresholdsStyle"]["mode"] != "off" else []
    drawn = [edge[1] for edge in _stacked(series)] if stack else [one.values for one in series]
    scale = _scale(panel, drawn, [step["value"] for step in steps], log)
    unit, decimals = config.get("unit", "short"), config.get("decimals")
    left = 14 + max(axes.width_of(text) for _, text in axes.tick_texts(scale, height - 26, unit, decimals))
    frame = axes.Frame(width, height, left, window[0], window[1])
    moments = window[2]
    parts = frame.times() + frame.values(scale, unit, decimals)
    edges = _stacked(series) if stack else [(None, one.values) for one in series]
    # In a stack the first series lies at the bottom; lines are drawn so that the first is on top.
    for one, (low, high) in reversed(list(zip(series, edges, strict=True))):
        parts += _one(one, low, high, frame, scale, moments, one.values)
    for step in steps:
        if 0 <= scale.at(step["value"]) <= 1:
            y = frame.y(scale.at(step["value"]))
            parts.append(
                axes.line(frame.left, y, frame.right, y, step["color"], 'stroke-dasharray="7 5" stroke-opacity="0.85"')
            )
    for moment in marks:
        x = frame.x(moment)
        parts.append(axes.line(x, frame.top, x, frame.bottom, "#F2495C", 'stroke-dasharray="3 3" stroke-opacity="0.8"'))
        parts.append(f'<path d="M{x - 4:.1f} {frame.bottom + 5}h8l-4 -6z" fill="#F2495C"/>')
    return (
        f'<div class="{"beside" if beside else "below"}"><svg width="{width:.0f}"'
        f' height="{height:.0f}">{"".join(parts)}</svg>{legend}</div>'
    )


def _one(one, low, high, frame, scale, moments, values):
    parts = []
    custom = one.custom

    def point(place, edge):
        return f"{frame.x(moments[place]):.1f} {frame.y(min(max(scale.at(edge), -0.02), 1.02)):.1f}"

    for run in _runs(values):
        path = "M" + "L".join(point(place, high[place]) for place in run)
        if custom.get("fillOpacity", 0) > 0:
            if low is None:
                base = f"L{frame.x(moments[run[-1]]):.1f} {frame.bottom}L{frame.x(moments[run[0]]):.1f} {frame.bottom}Z"
            else:
                base = "L" + "L".join(point(place, low[place]) for place in reversed(run)) + "Z"
            parts.append(f'<path d="{path}{base}" fill="{one.colour}" fill-opacity="{custom["fillOpacity"] / 100}"/>')
        style = custom.get("lineStyle", {})
        dash = f'stroke-dasharray="{" ".join(map(str, style["dash"]))}"' if style.get("fill") == "dash" else ""
        parts.append(
            f'<path d="{path}" fill="none" stroke="{one.colour}" stroke-width="{custom.get("lineWidth", 1) + 0.3}" {dash}/>'
        )
        if len(run) == 1:
            x, y = point(run[0], high[run[0]]).split()
            parts.append(f'<circle cx="{x}" cy="{y}" r="2" fill="{one.colour}"/>')
    return parts
