"""Prometheus's HTTP API, as far as dashboards ask for it."""

import json
import math
import re
import urllib.error
import urllib.parse
import urllib.request

LABEL_VALUES = re.compile(r"label_values\((?:(?P<selector>.+),\s*)?(?P<label>\w+)\)\Z", re.DOTALL)


class QueryError(Exception):
    """Prometheus rejects a query; the text is its reason."""


class Prometheus:
    """One server, at moments in seconds since the Unix epoch."""

    def __init__(self, url):
        self.url = url.rstrip("/")

    def _get(self, path, **parameters):
        data = urllib.parse.urlencode(parameters, doseq=True).encode()
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}", data=data, timeout=60) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            raise QueryError(json.load(error).get("error", str(error))) from error

    def instant(self, expr, at):
        """Pairs of labels and value."""
        answer = self._get("query", query=expr, time=at)
        if answer["resultType"] == "scalar":
            return [({}, float(answer["result"][1]))]
        return [(one["metric"], float(one["value"][1])) for one in answer["result"]]

    def range(self, expr, start, end, step):
        """Pairs of labels and values, which are None or not a number where there is none; and the moments of the values."""
        answer = self._get("query_range", query=expr, start=start, end=end, step=step)
        count = math.floor((end - start) / step + 1e-6) + 1
        moments = [start + place * step for place in range(count)]
        series = []
        for one in answer["result"]:
            values = [None] * count
            for moment, value in one["values"]:
                values[round((float(moment) - start) / step)] = float(value)
            series.append((one["metric"], values))
        return series, moments

    def label_values(self, query, start, end):
        """Returns the values of a variable that is defined as `label_values(SELECTOR, LABEL)`, sorted."""
        found = LABEL_VALUES.match(query.strip())
        if not found:
            raise QueryError(f"{query}: not of the form label_values(SELECTOR, LABEL)")
        window = {"start": start, "end": end}
        if found["selector"]:
            series = self._get("series", **{"match[]": found["selector"]}, **window)
            return sorted({one[found["label"]] for one in series if one.get(found["label"])})
        with urllib.request.urlopen(f"{self.url}/api/v1/label/{found['label']}/values", timeout=60) as response:
            return json.load(response)["data"]
