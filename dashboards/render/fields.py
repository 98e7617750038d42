"""How a panel shows a series or column: its defaults, what overrides say of it, and the colour of a value."""

import copy
import re

import units

# Grafana's classic palette.
PALETTE = (
    "#7EB26D #EAB839 #6ED0E0 #EF843C #E24D42 #1F78C1 #BA43A9 #705DA0 #508642 #CCA300 #447EBC #C15C17 #890F02 #0A437C #6D1F62"
    " #584477 #B7DBAB #F4D598 #70DBED #F9BA8F #F29191 #82B5D8 #E5A8E2 #AEA2E0 #629E51 #E5AC0E #64B0C8 #E0752D #BF1B00 #0A50A1"
).split()
TEXT = "#ccccdc"


class BadPanel(Exception):
    """A setting that this cannot draw."""


LABEL = re.compile(r"\{\{\s*(\w+)\s*\}\}")


def legend(pattern, labels):
    """The name of a series; a label that it has in no spelling shows by its name, so that nobody overlooks it."""
    known = {name.lower() for name in labels}
    return LABEL.sub(lambda match: labels.get(match[1], "" if match[1].lower() in known else match[1]), pattern)


def names_in(pattern):
    """The labels that a legend names."""
    return set(LABEL.findall(pattern))


def _matches(matcher, name):
    if matcher["id"] == "byName":
        return matcher["options"] == name
    if matcher["id"] == "byRegexp":
        return re.search(matcher["options"].strip("/"), name) is not None
    raise BadPanel(f"matcher {matcher['id']} is not known")


def settings(panel, name):
    """Returns the settings of the series or column of this name."""
    config = panel["fieldConfig"]
    merged = copy.deepcopy(config["defaults"])
    for override in config["overrides"]:
        if not _matches(override["matcher"], name):
            continue
        for each in override["properties"]:
            *way, last = each["id"].split(".")
            at = merged
            for key in way:
                at = at.setdefault(key, {})
            at[last] = each["value"]
    if not units.is_known(merged.get("unit", "short")):
        raise BadPanel(f"unit {merged['unit']} is not known")
    return merged


def threshold(config, value):
    """The colour of the highest step that `value` reaches."""
    colour = TEXT
    for step in config.get("thresholds", {}).get("steps", []):
        if step["value"] is None or (value is not None and value >= step["value"]):
            colour = step["color"]
    return colour


def mapped(config, value):
    """The text and colour that a mapping gives a value, or None."""
    keys = {str(value)}
    if isinstance(value, float) and value == int(value):
        keys.add(str(int(value)))
    for mapping in config.get("mappings", []):
        for key in keys & set(mapping["options"]):
            return mapping["options"][key]["text"], mapping["options"][key]["color"]
    return None


def colour(config, place, value=None):
    """The colour of the series at this place among those of its panel."""
    how = config.get("color", {})
    if how.get("mode") == "fixed":
        return how["fixedColor"]
    if how.get("mode") == "thresholds":
        return threshold(config, value)
    return PALETTE[place % len(PALETTE)]


def shown(config, value):
    """Text and, where one is meant, colour of a value."""
    found = mapped(config, value)
    if found:
        return found
    if isinstance(value, str):
        return value, None
    return units.text(value, config.get("unit", "short"), config.get("decimals")), None


def reduce(values, how):
    """One number of a series."""
    there = [value for value in values if value is not None and value == value]
    if not there:
        return None
    return {
        "lastNotNull": lambda: there[-1],
        "mean": lambda: sum(there) / len(there),
        "max": lambda: max(there),
        "min": lambda: min(there),
    }[how]()
