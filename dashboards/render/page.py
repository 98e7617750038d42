"""A dashboard as one page of HTML: its queries run, its panels drawn where it lays them."""

from html import escape

import draw_heatmap
import draw_series
import draw_values
from fields import BadPanel, legend, names_in
from prometheus import QueryError
from variables import UnknownVariable

WIDTH = 1600
CELL, GAP, MARGIN, HEADER, TOP = 30, 8, 16, 34, 96
STYLE = """
body{margin:0;background:#111217;color:#ccccdc;font:13px Inter,Roboto,"Helvetica Neue",Arial,"DejaVu Sans",sans-serif;position:relative}
svg{display:block}text{font-family:inherit}
.panel{position:absolute;background:#181b1f;border:1px solid #2b2e35;border-radius:2px;overflow:hidden;box-sizing:border-box}
.panel h2{font-size:14px;font-weight:500;margin:0;padding:8px 8px 0 10px;height:26px;white-space:nowrap;overflow:hidden;box-sizing:border-box}
.panel h2 i{font-style:normal;font-size:11px;color:#8e8e98;border:1px solid #4a4d55;border-radius:50%;padding:0 5px;margin-left:6px}
.body{padding:2px 8px 8px}.row{position:absolute;font-size:16px;font-weight:500}
.beside{display:flex;align-items:flex-start}.beside .legend{flex:1}.legend{overflow:hidden;font-size:12px;padding-left:6px}.legend>span{margin-right:14px;white-space:nowrap}
.legend table{width:100%;border-spacing:0;table-layout:auto}.legend th{height:21px;line-height:21px;box-sizing:border-box;font-weight:400;color:#6e9fff;text-align:right;padding:0 6px}
.legend th:first-child{text-align:left;color:#8e8e98}.legend td{line-height:21px;box-sizing:border-box;text-align:right;padding:0 6px;height:21px;white-space:nowrap}
.legend td.name{text-align:left;max-width:0;width:99%;overflow:hidden;text-overflow:ellipsis}
.dash{display:inline-block;width:14px;height:4px;border-radius:2px;margin-right:7px;vertical-align:middle}
.stats{display:flex;height:100%}.stat{flex:1;position:relative;text-align:center}.stat>div{position:relative;z-index:1;font-weight:500;line-height:1.25}
.stat small{display:block;font-size:12px}.spark{position:absolute;left:0;bottom:0}
.scale{display:flex;justify-content:center;align-items:center;gap:8px;color:#9a9aa8;font-size:11px;height:26px}
.scale b{display:flex;width:220px;height:8px}.scale i{flex:1}
.table table{width:100%;border-spacing:0;font-size:13px}.table th{text-align:left;color:#6e9fff;font-weight:500;height:32px;padding:0 8px;border-bottom:1px solid #2b2e35}
.table td{height:32px;padding:0 8px;border-bottom:1px solid #22252b;white-space:nowrap;max-width:360px;overflow:hidden;text-overflow:ellipsis}
.table table .number{text-align:right}.table th{white-space:nowrap}a{color:#6e9fff}
.cell{display:flex;align-items:center;gap:10px}.cell em{font-style:normal;width:52px;text-align:right}
.gauge{flex:1;min-width:70px;height:18px;background:#22252b}.gauge i{display:block;height:100%;opacity:.75}
.nodata{color:#8e8e98;text-align:center;padding-top:40px}
.title{position:absolute;left:16px;top:14px;font-size:18px;font-weight:500}.title small{color:#8e8e98;font-size:13px;margin-left:14px;font-weight:400}
.vars{position:absolute;left:16px;top:50px;display:flex;gap:14px}.vars span{border:1px solid #35383f;border-radius:2px}
.vars b{font-weight:500;background:#22252b;padding:6px 8px;display:inline-block}.vars em{font-style:normal;padding:6px 10px;display:inline-block}
"""


class Panel:
    """One panel, with what its queries answered."""

    def __init__(self, renderer, panel, variables):
        self.renderer, self.panel, self.variables = renderer, panel, variables
        self.title = variables.fill(panel["title"], plain=True)
        self.where = f'{renderer.dashboard["uid"]}: {self.title}'

    def answers(self, step):
        """For each query its answer; what is wrong with one is noted."""
        found = []
        for target in self.panel["targets"]:
            name = f'{self.where}: {target["legendFormat"]}'
            try:
                expr = self.variables.fill(target["expr"], step=step, scrape=self.renderer.scrape)
                if target["instant"]:
                    answer = self.renderer.prometheus.instant(expr, self.renderer.end)
                    numbers = [value for _, value in answer]
                else:
                    answer, self.moments = self.renderer.prometheus.range(expr, self.renderer.start, self.renderer.end, step)
                    numbers = [value for _, values in answer for value in values]
            except (QueryError, UnknownVariable) as error:
                self.renderer.errors.append(f"{name}: {error}")
                answer, numbers = [], [0]
            if not any(value is not None and value == value for value in numbers):
                self.renderer.empty.append((self.renderer.dashboard["uid"], self.panel["title"], target["legendFormat"]))
            absent = names_in(target["legendFormat"]) - {key for labels, _ in answer for key in labels}
            if answer and target["format"] == "time_series" and absent:
                self.renderer.errors.append(f"{name}: no series has the label {', '.join(sorted(absent))}")
            found.append((target, answer))
        return found

    def body(self, size):
        kind = self.panel["type"]
        step = self.renderer.step(size[0])
        answers = self.answers(step)
        if not any(answer for _, answer in answers):
            return '<div class="nodata">No data</div>'
        window = (self.renderer.start, self.renderer.end, getattr(self, "moments", []))
        if kind == "table":
            many = len(answers) > 1
            frames = [(f'Value #{target["refId"]}' if many else "Value", answer) for target, answer in answers]
            return draw_values.table(self.panel, frames, size)[0]
        if kind == "heatmap":
            return draw_heatmap.draw(self.panel, answers[0][1], window, size)
        named = [
            (legend(target["legendFormat"], labels), [value] if target["instant"] else value)
            for target, answer in answers
            for labels, value in answer
        ]
        if kind == "timeseries":
            return draw_series.draw(
                self.panel, named, window, size, self.renderer.marks if self.panel["id"] in self.renderer.marked else []
            )
        if kind == "state-timeline":
            return draw_values.states(self.panel, named, window, size)
        return {"stat": draw_values.stat, "bargauge": draw_values.bars}[kind](self.panel, named, size)

    def html(self, place):
        column = (WIDTH - 2 * MARGIN + GAP) / 24
        width, height = place["w"] * column - GAP, place["h"] * (CELL + GAP) - GAP
        left, top = MARGIN + place["x"] * column, TOP + place["y"] * (CELL + GAP)
        try:
            body = self.body((width - 18, height - HEADER - 4))
        except BadPanel as error:
            self.renderer.errors.append(f"{self.where}: {error}")
            body = ""
        about = "<i>i</i>" if self.panel.get("description") else ""
        return (
            '<div class="panel"'
            f' style="left:{left:.0f}px;top:{top:.0f}px;width:{width:.0f}px;height:{height:.0f}px"><h2>{escape(self.title)}{about}</h2><div'
            f' class="body" style="height:{height - HEADER - 4:.0f}px">{body}</div></div>'
        )


class Renderer:
    """Draws one dashboard, of one Prometheus and one time range. `errors` and `empty` tell what is wrong afterwards."""

    def __init__(self, dashboard, prometheus, variables, window, scrape):
        self.dashboard, self.prometheus, self.variables = dashboard, prometheus, variables
        self.start, self.end = window
        self.scrape = scrape
        self.errors, self.empty = [], []
        self.marks, self.marked = [], set()
        for one in dashboard["annotations"]["list"]:
            self.marked |= set(one["filter"]["ids"])
            series, moments = prometheus.range(variables.fill(one["expr"]), self.start, self.end, self.step(WIDTH))
            for _, values in series:
                self.marks.append(next(moment for moment, value in zip(moments, values, strict=True) if value is not None))

    def step(self, width):
        """As Grafana: as many values as there are pixels, not closer than scrapes."""
        return max(self.scrape, round((self.end - self.start) / width))

    def placed(self):
        """Panels with their variables and places, those repeated once for each value, which moves what is below."""
        down = 0
        for panel in self.dashboard["panels"]:
            place = dict(panel["gridPos"], y=panel["gridPos"]["y"] + down)
            if not panel.get("repeat"):
                yield panel, self.variables, place
                continue
            values = self.variables.values[panel["repeat"]]
            many = min(len(values), panel["maxPerRow"])
            width = 24 // many
            for number, value in enumerate(values):
                at = {"x": number % many * width, "y": place["y"] + number // many * place["h"], "w": width, "h": place["h"]}
                yield panel, self.variables.one(panel["repeat"], value), at
            down += (len(values) - 1) // many * place["h"]

    def html(self, only=None):
        """The page and its height; `only` is how many rows of the grid are wanted."""
        parts, bottom = [], 0
        for panel, variables, place in self.placed():
            if panel["type"] == "row":
                top = TOP + place["y"] * (CELL + GAP) + 4
                parts.append(f'<div class="row" style="left:{MARGIN}px;top:{top}px">&#9662; {escape(panel["title"])}</div>')
                continue
            bottom = max(bottom, place["y"] + place["h"])
            parts.append(Panel(self, panel, variables).html(place))
        rows = min(bottom, only) if only else bottom
        height = TOP + rows * (CELL + GAP) + (0 if only else GAP)
        chosen = "".join(
            f'<span><b>{escape(one["label"])}</b><em>{escape(self.variables.fill("$" + one["name"], plain=True))}</em></span>'
            for one in self.dashboard["templating"]["list"]
        )
        title = (
            f'<div class="title">{escape(self.dashboard["title"])}<small>{escape(self.dashboard["description"])}</small></div>'
        )
        return (
            (
                f'<!doctype html><meta charset="utf-8"><style>{STYLE}body{{width:{WIDTH}px;height:{height}px}}</style>{title}'
                f'<div class="vars">{chosen}</div>{"".join(parts)}'
            ),
            height,
        )
