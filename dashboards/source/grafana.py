"""The parts that dashboards are made of, as Grafana's JSON: queries, panels, variables, links, and where panels go.

A panel is laid after the one before, so that none lies on another. The keys are those of schema version 39, which
Grafana 11 and 12 read.
"""

import levels

SCHEMA_VERSION = 39
GRAFANA = "11.0.0"
WIDTH = 24
RUNBOOKS = "https://github.com/gpucause/gpucause/blob/main/investigations"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

GREEN, YELLOW, ORANGE, RED, BLUE, GREY = "#73BF69", "#FADE2A", "#FF9830", "#F2495C", "#5794F2", "#8E8E8E"
# One colour a cause on every dashboard; no two that occur together are alike.
CAUSES = {
    "cpu_preemption": "#F2495C",
    "runqueue_wait": "#FF9830",
    "noisy_cgroup": "#FFCB7D",
    "lock_wait": "#B877D9",
    "kernel_lock": "#7C3AA5",
    "block_io": "#5794F2",
    "page_fault": "#8AB8FF",
    "process_wait": "#E0B400",
    "dataloader_starvation": "#FADE2A",
    "implicit_sync": "#1F8A70",
    "allocator_churn": "#73BF69",
    "memory_leak": "#37872D",
    "graph_recapture": "#00C2C7",
    "nccl_late_rank": "#FF7BAC",
    "clock_throttling": "#A16207",
    "oom_kill": "#8F0A1E",
    "cold_start": "#C0D8FF",
    "host_code": "#E8C9A0",
    "large_copy": "#3D71D9",
    "unexplained": "#8E8E8E",
}
# Reasons off the CPU have the colour of the cause that they lead to.
REASONS = {
    "preempted": CAUSES["cpu_preemption"],
    "runqueue": CAUSES["runqueue_wait"],
    "lock": CAUSES["lock_wait"],
    "kernel_lock": CAUSES["kernel_lock"],
    "futex": "#6E7687",
    "io": CAUSES["block_io"],
    "page_fault": CAUSES["page_fault"],
    "gpu_driver": CAUSES["implicit_sync"],
    "poll": CAUSES["graph_recapture"],
    "net": CAUSES["nccl_late_rank"],
    "sleep": "#5C6370",
    "other": CAUSES["unexplained"],
    "frozen": "#3B4048",
    "stopped": "#4B5263",
    "core_dump": "#2C313A",
    "yield": "#3D4451",
    "child": "#4E5665",
}
SEVERITIES = {"low": YELLOW, "medium": ORANGE, "high": "#E0562B", "critical": RED}


def steps(*pairs):
    """Thresholds: a colour to begin with, then (from, colour)."""
    first, *rest = pairs
    return [{"color": first, "value": None}] + [{"color": colour, "value": value} for value, colour in rest]


def absolute(levels):
    """Thresholds by value, as fields and columns have them."""
    return {"mode": "absolute", "steps": levels}


def rate(metric, by, selector):
    """Returns the query of a counter's increase a second, summed up by labels."""
    return f"sum by ({by}) (rate({metric}{{{selector}}}[$__rate_interval]))"


def query(expr, legend, *, instant=False, table=False, heatmap=False):
    """A query of a panel; `legend` may name labels in double braces."""
    return {
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": " ".join(expr.split()),
        "format": "table" if table else "heatmap" if heatmap else "time_series",
        "instant": instant or table,
        "range": not (instant or table),
        "legendFormat": legend,
    }


def override(name, **settings):
    """Settings of the series or column of this name, or of all that match when it is written /so/."""
    matcher = "byRegexp" if name.startswith("/") else "byName"
    properties = [{"id": key.replace("__", "."), "value": value} for key, value in settings.items()]
    return {"matcher": {"id": matcher, "options": name}, "properties": properties}


def coloured(colours):
    """Overrides that give each series of a name its colour."""
    return [override(name, color={"mode": "fixed", "fixedColor": colour}) for name, colour in colours.items()]


def to_process():
    """The column of PIDs, each a link to the dashboard of that process."""
    links = [
        {
            "title": "This process",
            "url": "/d/gpucause-process/?${datasource:queryparam}&var-instance=${__data.fields.Instance}"
            "&var-pid=${__data.fields.PID}&${__url_time_range}",
        }
    ]
    return override("PID", links=links, unit="none")


def dashed(name, **more):
    """A series that others are compared with."""
    return override(name, custom__lineStyle={"fill": "dash", "dash": [6, 4]}, custom__fillOpacity=0, **more)


def share_gauge(name, **more):
    """A column of shares, each with its number and a bar."""
    gauge = cell("gauge", mode="basic", valueDisplayMode="text")
    return override(name, unit="percentunit", decimals=1, min=0, max=1, custom__cellOptions=gauge, **more)


def runbook(alert):
    return {"title": f"Runbook: {alert}", "url": f"{RUNBOOKS}/{alert}.md", "targetBlank": True}


def _panel(kind, title, description, targets, *, w, h, runbooks=(), defaults=None, overrides=(), options=None, **more):
    panel = {
        "type": kind,
        "title": title,
        "description": " ".join(description.split()),
        "datasource": DATASOURCE,
        "pluginVersion": GRAFANA,
        "targets": [dict(target, refId=chr(ord("A") + index)) for index, target in enumerate(targets)],
        "fieldConfig": {"defaults": defaults or {}, "overrides": list(overrides)},
        "options": options or {},
        "gridPos": {"w": w, "h": h},
        **more,
    }
    if runbooks:
        panel["links"] = [runbook(alert) for alert in runbooks]
    return panel


def timeseries(
    title,
    description,
    targets,
    *,
    unit,
    w=8,
    h=8,
    stack=False,
    low=0,
    high=None,
    log=False,
    lines=None,
    overrides=(),
    legend=("mean", "max"),
    decimals=None,
    **more,
):
    """Lines, or areas on top of each other. `lines` are thresholds to be drawn."""
    beside = w >= 12
    custom = {
        "drawStyle": "line",
        "lineInterpolation": "linear",
        "lineWidth": 1,
        "fillOpacity": 70 if stack else 0 if log else 6,
        "gradientMode": "none",
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if stack else "none", "group": "A"},
        "scaleDistribution": {"type": "log", "log": 10} if log else {"type": "linear"},
        "thresholdsStyle": {"mode": "dashed" if lines else "off"},
        "axisPlacement": "auto",
    }
    defaults = {"unit": unit, "color": {"mode": "palette-classic"}, "custom": custom}
    if low is not None and not log:
        defaults["min"] = low
    if high is not None:
        defaults["max"] = high
    if decimals is not None:
        defaults["decimals"] = decimals
    if lines:
        defaults["thresholds"] = absolute(lines)
    options = {
        "legend": {
            "showLegend": True,
            "displayMode": "table",
            "placement": "right" if beside else "bottom",
            "calcs": list(legend),
            **({"width": 215 + 70 * len(legend)} if beside else {}),
        },
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return _panel(
        "timeseries", title, description, targets, w=w, h=h, defaults=defaults, overrides=overrides, options=options, **more
    )


def stat(
    title,
    description,
    targets,
    *,
    unit,
    thresholds=None,
    w=4,
    h=4,
    decimals=None,
    calc="lastNotNull",
    spark=True,
    mappings=(),
    overrides=(),
    **more,
):
    """One number, coloured by thresholds."""
    defaults = {
        "unit": unit,
        "color": {"mode": "thresholds"},
        "thresholds": absolute(thresholds or steps(BLUE)),
        "mappings": list(mappings),
    }
    if decimals is not None:
        defaults["decimals"] = decimals
    options = {
        "colorMode": "value",
        "graphMode": "area" if spark else "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "auto",
        "reduceOptions": {"calcs": [calc], "fields": "", "values": False},
    }
    return _panel(
        "stat", title, description, targets, w=w, h=h, defaults=defaults, options=options, overrides=overrides, **more
    )


def bars(title, description, targets, *, unit, w=8, h=8, high=None, thresholds=None, overrides=(), decimals=None, **more):
    """A bar for each series, of its last value."""
    defaults = {
        "unit": unit,
        "min": 0,
        "color": {"mode": "thresholds" if thresholds else "palette-classic"},
        "thresholds": absolute(thresholds or steps(BLUE)),
    }
    if high is not None:
        defaults["max"] = high
    if decimals is not None:
        defaults["decimals"] = decimals
    options = {
        "displayMode": "basic",
        "orientation": "horizontal",
        "showUnfilled": True,
        "valueMode": "color",
        "namePlacement": "left",
        "sizing": "auto",
        "minVizHeight": 14,
        "maxVizHeight": 24,
        "minVizWidth": 8,
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }
    return _panel(
        "bargauge", title, description, targets, w=w, h=h, defaults=defaults, options=options, overrides=overrides, **more
    )


def heatmap(title, description, targets, *, unit="s", w=8, h=9, scheme="Oranges", **more):
    """Buckets of a histogram over time; the unit is that of the buckets."""
    options = {
        "calculate": False,
        "cellGap": 1,
        "cellValues": {"unit": "short", "decimals": 0},
        "color": {
            "mode": "scheme",
            "scheme": scheme,
            "scale": "exponential",
            "exponent": 0.4,
            "steps": 64,
            "reverse": False,
            "fill": "dark-orange",
        },
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "showValue": "never",
        "tooltip": {"mode": "single", "yHistogram": True, "showColorScale": True},
        "yAxis": {"unit": unit, "axisPlacement": "left", "reverse": False},
    }
    defaults = {
        "custom": {"hideFrom": {"legend": False, "tooltip": False, "viz": False}, "scaleDistribution": {"type": "linear"}}
    }
    return _panel("heatmap", title, description, targets, w=w, h=h, defaults=defaults, options=options, **more)


def table(title, description, targets, columns, *, w=24, h=8, sort=None, overrides=(), unit="short", **more):
    """Instant queries joined on their labels. `columns` names those to be shown, in order, with their titles."""
    index = {name: place for place, name in enumerate(columns)}
    transformations = [
        {"id": "merge", "options": {}},
        {"id": "filterFieldsByName", "options": {"include": {"names": list(columns)}}},
        {"id": "organize", "options": {"excludeByName": {}, "indexByName": index, "renameByName": dict(columns)}},
    ]
    defaults = {
        "unit": unit,
        "custom": {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False, "filterable": True},
        "color": {"mode": "thresholds"},
        "thresholds": absolute(steps(BLUE)),
    }
    options = {
        "showHeader": True,
        "cellHeight": "sm",
        "footer": {"show": False, "reducer": ["sum"], "countRows": False, "fields": ""},
        "sortBy": [{"displayName": sort, "desc": True}] if sort else [],
    }
    return _panel(
        "table",
        title,
        description,
        targets,
        w=w,
        h=h,
        defaults=defaults,
        options=options,
        overrides=overrides,
        transformations=transformations,
        **more,
    )


def states(title, description, targets, *, mappings, unit="short", w=24, h=6, **more):
    """A band for each series that changes its colour with its value."""
    defaults = {
        "unit": unit,
        "color": {"mode": "thresholds"},
        "thresholds": absolute(steps(GREEN)),
        "custom": {"fillOpacity": 75, "lineWidth": 0, "spanNulls": False},
        "mappings": mappings,
    }
    options = {
        "alignValue": "left",
        "mergeValues": True,
        "rowHeight": 0.85,
        "showValue": "auto",
        "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom"},
        "tooltip": {"mode": "single", "sort": "none"},
    }
    return _panel("state-timeline", title, description, targets, w=w, h=h, defaults=defaults, options=options, **more)


def values(mapping):
    """Maps values to text and colour: value -> (text, colour)."""
    options = {
        str(value): {"text": text, "color": colour, "index": index}
        for index, (value, (text, colour)) in enumerate(mapping.items())
    }
    return {"type": "value", "options": options}


def cell(kind, **more):
    """How a table shows a column: color-text, color-background, gauge."""
    return {"type": kind, **more}


def variable(name, label, of, *, description, default=None):
    """A variable that can have several values, or all. `of` is a query for values of a label."""
    current = {"selected": True, "text": ["All"], "value": ["$__all"]}
    if default:
        current = {"selected": True, "text": list(default), "value": list(default)}
    return {
        "type": "query",
        "name": name,
        "label": label,
        "description": description,
        "datasource": DATASOURCE,
        "definition": of,
        "query": {"qryType": 1, "query": of, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
        "refresh": 2,
        "sort": 3 if name == "pid" else 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": current,
        "options": [],
        "hide": 0,
        "regex": "",
        "skipUrlSync": False,
    }


def instances():
    """The variable that every dashboard of hosts has."""
    return variable("instance", "Instance", "label_values(gpucause_build_info, instance)", description="Exporters, one a host.")


def _source():
    return {
        "type": "datasource",
        "name": "datasource",
        "label": "Prometheus",
        "description": "The Prometheus that scrapes the exporters and evaluates gpucause's rules.",
        "query": "prometheus",
        "current": {},
        "options": [],
        "refresh": 1,
        "regex": "",
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "skipUrlSync": False,
    }


def _lay(rows):
    """Places the panels of each row of the dashboard, from left to right and on to the next line where one does not fit."""
    panels, y = [], 0
    for title, members in rows:
        panels.append(
            {"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": y}}
        )
        y += 1
        x = tallest = 0
        for member in members:
            width, height = member["gridPos"]["w"], member["gridPos"]["h"]
            if x + width > WIDTH:
                x, y, tallest = 0, y + tallest, 0
            panels.append(dict(member, gridPos={"h": height, "w": width, "x": x, "y": y}))
            x, tallest = x + width, max(tallest, height)
        y += tallest
    return [dict(levels.noted(panel), id=number) for number, panel in enumerate(panels, 1)]


def _alerts(panels):
    """Marks where alerts began to fire, on the panels that have `alerts`."""
    return {
        "name": "Alerts",
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "iconColor": "rgba(242, 73, 92, 0.7)",
        "expr": 'ALERTS{alertname=~"Gpucause.*", alertstate="firing", severity=~"critical|warning"}',
        "step": "60s",
        "titleFormat": "{{alertname}}",
        "textFormat": "{{severity}} {{instance}} {{comm}} {{pid}}",
        "tagKeys": "alertname,severity",
        "useValueForTime": False,
        "filter": {"exclude": False, "ids": panels},
    }


def dashboard(uid, title, description, variables, rows, *, alerts=()):
    """A dashboard of rows of panels; `alerts` are the titles of panels on which firing alerts are marked."""
    panels = _lay(rows)
    marked = [panel["id"] for panel in panels if panel["title"] in alerts]
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["gpucause"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {},
        "timezone": "",
        "weekStart": "",
        "fiscalYearStartMonth": 0,
        "liveNow": False,
        "annotations": {"list": [_alerts(marked)] if marked else []},
        "links": [
            {
                "type": "dashboards",
                "title": "gpucause",
                "tags": ["gpucause"],
                "asDropdown": False,
                "icon": "external link",
                "includeVars": True,
                "keepTime": True,
                "targetBlank": False,
                "tooltip": "",
                "url": "",
            }
        ],
        "templating": {"list": [_source(), *variables]},
        "panels": panels,
    }
