#!/usr/bin/env python3
"""Writes the rules and alerts about stragglers of the last 20 s for vmalert: rules/victoria.py [FOLDER of the repository's copy].

A rule of Prometheus reads what the one before it has recorded a moment ago. With vmalert that is not to be seen until seconds later,
so a chain of ten rules would be most of a minute late. There each rule has those that it reads as `WITH` templates of MetricsQL.
"""

import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[1]
HEAD = """# {file} for vmalert, which sees what a rule recorded only seconds later: each expression has the rules that it reads as templates
# of MetricsQL. Load it in place of that file. Written by rules/victoria.py.
"""
RULE = re.compile(r"      - (record|alert): (\S+)\n        expr: (?:\|\n((?:          .*\n)+)|(.+)\n)")
# Recorded names, except with a range or an offset: the past has only recorded values.
NAME = re.compile(r"(?:process|peers|rank|state):gpucause_fleet_\w+:\w+(?![\w:\[]| offset)")
# Templates are of now, and expressions have no timestamp.
OF_NOW = re.compile(rf"timestamp\(({NAME.pattern})\) > time\(\) - 11")


def read_by(name, expression):
    """Other rules that this one reads. What it recorded itself is of the past."""
    return set(NAME.findall(expression)) - {name}


def with_templates(name, expression, before):
    """The expression, with templates for all that it reads of the rules before it."""
    needed, pending = set(), [(name, expression)]
    while pending:
        for found in read_by(*pending.pop()) & before.keys() - needed:
            needed.add(found)
            pending.append((found, before[found]))
    if not needed:
        return expression

    def replaced(own, text):
        return NAME.sub(lambda found: found[0].replace(":", "_") if found[0] in needed - {own} else found[0], text)

    templates = ",\n".join(
        f"{own.replace(':', '_')} = (\n{textwrap.indent(replaced(own, text), '  ')}\n)" for own, text in before.items() if own in needed)
    return f"WITH (\n{textwrap.indent(templates, '  ')}\n)\n{replaced(name, expression)}"


def rewritten(file, before, group):
    """The file with templates in the expressions of a group, whose rules become known."""
    text = (ROOT / file).read_text()
    begin = text.index(f"  - name: {group}\n")
    end = text.find("\n  - name: ", begin + 1)
    end = len(text) if end < 0 else end + 1

    def rule(found):
        kind, name, block, line = found.groups()
        expression = OF_NOW.sub(r"\1", textwrap.dedent(block).rstrip() if block else line)
        body = with_templates(name, expression, before)
        if kind == "record":
            before[name] = expression
        return f"      - {kind}: {name}\n        expr: |\n{textwrap.indent(body, ' ' * 10)}\n"

    return HEAD.format(file=file) + text[text.index("groups:"):begin] + RULE.sub(rule, text[begin:end]) + text[end:]


def main(root):
    before = {}
    for file, group in (("rules/stragglers.yaml", "gpucause-stragglers"), ("alerts/fleet.yaml", "gpucause-fleet-alerts-2s")):
        target = root / pathlib.Path(file).parent / "victoria-metrics" / pathlib.Path(file).name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(rewritten(file, before, group))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
