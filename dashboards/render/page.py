"""A dashboard as one page of HTML: its queries run, its panels drawn where it lays them."""

import pathlib
from html import escape

import draw_heatmap
import draw_series
import draw_values
from fields import BadPanel, legend, names_in
from prometheus import QueryError
from variables import UnknownVariable

WIDTH = 1600
CELL, GAP, MARGIN, HEADER, TOP = 30, 8, 16, 34, 96
STYLE = (pathlib.Path(__file__).parent / "page.css").read_text()


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
                where = (self.renderer.dashboard["uid"], self.panel["title"], target["legendFormat"])
                self.renderer.empty.append((where, self.panel, target["expr"]))
            there = {key.lower() for labels, _ in answer for key in labels}
            # A label that exporters spell in two ways is there in either.
            absent = {key for key in names_in(target["legendFormat"]) if key.lower() not in there}
            if answer and target["format"] == "time_series" and absent:
                self.renderer.errors.append(f"{name}: no series has the label {', '.join(sorted(absent))}")
            found.append((target, answer))
        return found

    def body(self, size):
        kind = self.panel["type"]
        step = self.renderer.step(size[0])
        answers = self.answers(step)
        if not any(answer for _, answer in answers):
            text = self.panel["fieldConfig"]["defaults"].get("noValue", "No data")
            return f'<div class="nodata">{escape(text)}</div>'
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
        where = f"left:{left:.0f}px;top:{top:.0f}px;width:{width:.0f}px;height:{height:.0f}px"
        heading = f"<h2>{escape(self.title)}{about}</h2>"
        body = f'<div class="body" style="height:{height - HEADER - 4:.0f}px">{body}</div>'
        return f'<div class="panel" style="{where}">{heading}{body}</div>'


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
        """Returns the step of a query as Grafana chooses it: one value a pixel, but none closer than scrapes."""
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
            if not values:
                continue  # The variable is reported as missing.
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
