"""Numbers as people read them, in the units that the dashboards use."""

import datetime
import math

BINARY = ["", "Ki", "Mi", "Gi", "Ti", "Pi"]
DECIMAL = ["", "K", "Mil", "Bil", "Tri"]
TIMES = [
    (86400 * 365, "years"),
    (86400 * 7, "weeks"),
    (86400, "days"),
    (3600, "hours"),
    (60, "mins"),
    (1, "s"),
    (1e-3, "ms"),
    (1e-6, "µs"),
    (1e-9, "ns"),
]
# Suffixes written behind a number.
SUFFIXES = {"percent": "%", "percentunit": "%", "ops": "ops/s", "watt": "W", "short": "", "none": ""}
KNOWN = {*SUFFIXES, "s", "bytes", "Bps", "mbytes", "dateTimeAsIso"}


def is_known(unit):
    return unit in KNOWN or unit.startswith("suffix:")


def digits(value, decimals):
    """With so many decimals, or else with three significant digits and no zeros at the end."""
    if decimals is not None:
        return f"{value:.{decimals}f}"
    if value == 0:
        return "0"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{min(places, 12)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def scaled(value, base, names, decimals, gap=" "):
    place = 0
    while abs(value) >= base and place < len(names) - 1:
        value, place = value / base, place + 1
    return digits(value, decimals) + gap + names[place]


def text(value, unit, decimals=None):
    """`value` with its unit."""
    if value is None or math.isnan(value):
        return ""
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if unit == "s":
        scale, name = next(((scale, name) for scale, name in TIMES if abs(value) >= scale), TIMES[-1])
        return "0 s" if value == 0 else f"{digits(value / scale, decimals)} {name}"
    if unit in ("bytes", "mbytes"):
        return scaled(value * (1 << 20 if unit == "mbytes" else 1), 1024, [f"{one}B" for one in BINARY], decimals)
    if unit == "Bps":
        return scaled(value, 1000, ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"], decimals)
    if unit == "percentunit":
        return digits(value * 100, decimals) + "%"
    if unit == "percent":
        return digits(value, decimals) + "%"
    if unit == "dateTimeAsIso":
        return datetime.datetime.fromtimestamp(value / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
    if unit.startswith("suffix:"):
        return digits(value, decimals) + unit.removeprefix("suffix:")
    if unit == "none":
        return digits(value, decimals if decimals is not None else 0 if value == int(value) else None)
    suffix = SUFFIXES[unit]
    return (
        f"{scaled(value, 1000, DECIMAL if unit == 'short' else ['', 'K', 'M', 'B', 'T'], decimals, ' ' if unit == 'short' else '')}"
        f" {suffix}".strip()
    )
