"""Panels of single values: numbers, bars, bands of states, tables."""

from html import escape

import axes
from fields import BadPanel, colour, mapped, reduce, settings, shown, threshold


def stat(panel, named, size):
    """A number for each series, with its course behind it."""
    width, height = size
    blocks = []
    for place, (name, values) in enumerate(named):
        config = settings(panel, name)
        value = reduce(values, panel["options"]["reduceOptions"]["calcs"][0])
        text, chosen = shown(config, value)
        chosen = chosen or colour(config, place, value)
        font = min(height * 0.5, width / len(named) / max(len(text), 1) * 1.5)
        spark = ""
        if panel["options"]["graphMode"] == "area" and len(values) > 1:
            spark = _spark(values, width / len(named), height * 0.42, chosen)
        title = f"<small>{escape(name)}</small>" if len(named) > 1 else ""
        blocks.append(
            f'<div class="stat"><div style="color:{chosen};font-size:{font:.0f}px">{escape(text)}{title}</div>{spark}</div>'
        )
    return f'<div class="stats">{"".join(blocks)}</div>'


def _spark(values, width, height, chosen):
    there = [(place, value) for place, value in enumerate(values) if value is not None and value == value]
    low, high = min(value for _, value in there), max(value for _, value in there)
    low = min(low, high - (abs(high) or 1) * 0.2)
    points = [
        f"{place / (len(values) - 1) * width:.1f} {height - 2 - (value - low) / ((high - low) or 1) * (height - 6):.1f}"
        for place, value in there
    ]
    path = "M" + "L".join(points)
    ends = points[-1].split()[0], points[0].split()[0]
    return (
        f'<svg class="spark" width="{width:.0f}" height="{height:.0f}"><path d="{path}L{ends[0]} {height}L{ends[1]} {height}Z"'
        f' fill="{chosen}" fill-opacity="0.15"/><path d="{path}" fill="none" stroke="{chosen}"/></svg>'
    )


def bars(panel, named, size):
    """A bar for each series, of its reduced value."""
    width, height = size
    calc = panel["options"]["reduceOptions"]["calcs"][0]
    rows = [(name, settings(panel, name), reduce(values, calc)) for name, values in named]
    most = panel["fieldConfig"]["defaults"].get("max") or max(value for *_, value in rows) or 1.0
    texts = [shown(config, value)[0] for _, config, value in rows]
    names = min(max(axes.width_of(name, 13) for name, *_ in rows) + 8, width * 0.45)
    numbers = max(axes.width_of(text, 13) for text in texts) + 14
    # Bars are as high as the panel's own bounds say, or as there is room.
    tall = min(max(height / len(rows) - 5, panel["options"]["minVizHeight"]), panel["options"]["maxVizHeight"])
    parts, room = [], width - names - numbers
    for place, ((name, config, value), text) in enumerate(zip(rows, texts, strict=True)):
        y = place * (tall + 5)
        chosen = colour(config, place, value)
        while axes.width_of(name, 13) > names:
            name = name[:-2] + "\u2026"
        parts.append(axes.label(0, y + tall / 2 + 4, name, "start", "#ccccdc", 13))
        parts.append(f'<rect x="{names:.0f}" y="{y:.1f}" width="{room:.0f}" height="{tall:.1f}" fill="#22252b"/>')
        long = min(value / most, 1) * room
        parts.append(
            f'<rect x="{names:.0f}" y="{y:.1f}" width="{long:.1f}" height="{tall:.1f}" fill="{chosen}" fill-opacity="0.35"/>'
        )
        parts.append(f'<rect x="{names + max(long - 2, 0):.1f}" y="{y:.1f}" width="2" height="{tall:.1f}" fill="{chosen}"/>')
        parts.append(axes.label(width - 4, y + tall / 2 + 4, text, "end", chosen, 13))
    if len(rows) * (tall + 5) - 5 > height + 1:
        raise BadPanel(f"{len(rows)} bars do not fit")
    return f'<svg width="{width:.0f}" height="{height:.0f}">{"".join(parts)}</svg>'


def states(panel, named, window, size):
    """A band for each series, in the colour and with the text of its state."""
    width, height = size
    height -= 24
    left = 14 + max(axes.width_of(name) for name, _ in named)
    frame = axes.Frame(width, height, left, window[0], window[1])
    moments, step = window[2], window[2][1] - window[2][0]
    tall = frame.height / len(named)
    parts, seen = frame.times(), {}
    for place, (name, values) in enumerate(named):
        config = settings(panel, name)
        y = frame.top + place * tall + tall * 0.08
        parts.append(axes.label(frame.left - 7, y + tall * 0.42 + 4, name, "end"))
        for begin, end in _bands(values):
            value = values[begin]
            text, chosen = mapped(config, value) or (shown(config, value)[0], threshold(config, value))
            seen[text] = chosen
            x, right = frame.x(moments[begin]), frame.x(min(moments[end] + step, frame.end))
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(right - x, 1):.1f}" height="{tall * 0.84:.1f}" fill="{chosen}"'
                ' fill-opacity="0.75"/>'
            )
            if axes.width_of(text) + 12 < right - x and tall > 15:
                parts.append(axes.label(x + 6, y + tall * 0.42 + 4, text, "start", "#ffffff"))
    items = "".join(
        f'<span><span class="dash" style="background:{chosen}"></span>{escape(text)}</span>' for text, chosen in seen.items()
    )
    return f'<svg width="{width:.0f}" height="{height:.0f}">{"".join(parts)}</svg><div class="legend">{items}</div>'


def _bands(values):
    """First and last place of each stretch of one value."""
    begin = None
    for place, value in enumerate([*values, None]):
        if begin is not None and (value is None or value != values[begin]):
            yield begin, place - 1
            begin = None
        if begin is None and value is not None and value == value:
            begin = place


def merged(frames):
    """Rows of several answers, joined on the labels that they have in common. A frame is the name of its value, and rows."""
    rows = []
    for value_name, answer in frames:
        for labels, value in answer:
            same = next(
                (
                    row
                    for row in rows
                    if value_name not in row and all(row.get(key, each) == each for key, each in labels.items())
                ),
                None,
            )
            if same is None:
                rows.append({**labels, value_name: value})
            else:
                same.update({**labels, value_name: value})
    return rows


def table(panel, frames, size):
    """A table of what `merge`, `filterFieldsByName` and `organize` leave."""
    known = {one["id"]: one["options"] for one in panel["transformations"]}
    if set(known) != {"merge", "filterFieldsByName", "organize"}:
        raise BadPanel(f"transformations {', '.join(known)} are not drawn")
    rows = merged(frames)
    organize = known["organize"]
    there = {key for row in rows for key in row} & set(known["filterFieldsByName"]["include"]["names"])
    columns = [
        (key, organize["renameByName"].get(key, key))
        for key in sorted(there, key=lambda key: organize["indexByName"].get(key, 99))
    ]
    for sort in reversed(panel["options"]["sortBy"]):
        key = next(key for key, title in columns if title == sort["displayName"])
        rows.sort(key=lambda row: row.get(key, float("-inf")), reverse=sort["desc"])
    lines = ["<tr>" + "".join(_head(panel, title, [row.get(key) for row in rows]) for key, title in columns) + "</tr>"]
    for row in rows[: max(1, int((size[1] - 34) / 33))]:
        lines.append("<tr>" + "".join(_cell(settings(panel, title), row.get(key)) for key, title in columns) + "</tr>")
    return f'<div class="table"><table>{"".join(lines)}</table></div>', rows, [key for key, _ in columns]


def _head(panel, title, values):
    config = settings(panel, title)
    width = config.get("custom", {}).get("width")
    number = any(isinstance(value, float) for value in values) and not config.get("mappings")
    side = ' class="number"' if number and config.get("custom", {}).get("cellOptions", {}).get("type") != "gauge" else ""
    return f"<th{side}" + (f' style="width:{width}px"' if width else "") + f">{escape(title)}</th>"


def _cell(config, value):
    if value is None or value == "":
        return "<td></td>"
    text, chosen = shown(config, value)
    kind = config.get("custom", {}).get("cellOptions", {}).get("type", "auto")
    number = not isinstance(value, str)
    chosen = chosen or (colour(config, 0, value) if number and kind != "auto" else None)
    side = ' class="number"' if number and not config.get("mappings") else ""
    text = f"<a>{escape(text)}</a>" if config.get("links") else escape(text)
    if kind == "color-background" and chosen:
        return f'<td style="background:{chosen};color:#111217">{text}</td>'
    if kind == "color-text" and chosen:
        return f'<td{side} style="color:{chosen}">{text}</td>'
    if kind == "gauge":
        share = (value - config.get("min", 0)) / (config.get("max", 1) - config.get("min", 0))
        bar = f'<span class="gauge"><i style="width:{max(min(share, 1), 0) * 100:.1f}%;background:{chosen}"></i></span>'
        return f'<td><div class="cell">{bar}<em style="color:{chosen}">{text}</em></div></td>'
    return f"<td{side}>{text}</td>"
