"""Values of a dashboard's variables in queries, titles and links."""

import re

ALL = "$__all"
USE = re.compile(r"\$((?!\d)\w+)|\$\{(\w+)(?::(\w+))?\}|\[\[(\w+)\]\]")


class UnknownVariable(Exception):
    """A variable that the dashboard does not have."""


def seconds(value):
    """A time as PromQL writes it, in whole seconds."""
    return f"{max(1, round(value))}s"


class Variables:
    """Values of one dashboard's variables, by name, for one time range."""

    def __init__(self, dashboard, prometheus, start, end, chosen=None):
        self.values = {}
        self.all = set()
        self.missing = []
        self.start, self.end = start, end
        for one in dashboard["templating"]["list"]:
            if one["type"] == "datasource":
                self.values[one["name"]] = ["prometheus"]
                continue
            found = prometheus.label_values(self.fill(one["definition"]), start, end)
            if not found:
                self.missing.append(one["name"])
            wanted = (chosen or {}).get(one["name"]) or one["current"]["value"]
            kept = [value for value in wanted if value in found]
            if kept:
                self.values[one["name"]] = kept
            else:
                self.values[one["name"]] = found
                self.all.add(one["name"])
            self.values[one["name"], "all"] = one.get("allValue") or "|".join(found)

    def one(self, name, value):
        """Returns a copy of the variables with one value for `name`."""
        copy = object.__new__(Variables)
        copy.__dict__ = {**self.__dict__, "values": {**self.values, name: [value]}, "all": self.all - {name}}
        return copy

    def fill(self, text, *, step=15, scrape=15, plain=False):
        """`text` with values in place of variables; `plain` writes them for people, not as regular expressions."""
        built_in = {
            "__rate_interval": seconds(max(step + scrape, 4 * scrape)),
            "__interval": seconds(step),
            "__range": seconds(self.end - self.start),
        }

        def value(match):
            name = match[1] or match[2] or match[4]
            if name in built_in:
                return built_in[name]
            if name.startswith("__"):
                return match[0]
            if name not in self.values:
                raise UnknownVariable(f"${name} in: {text}")
            if name in self.all:
                return "All" if plain else self.values[name, "all"]
            values = self.values[name]
            if plain:
                return " + ".join(values)
            return (
                values[0] if len(values) == 1 else "(" + "|".join(re.escape(one).replace("\\", "\\\\") for one in values) + ")"
            )

        return USE.sub(value, text)
