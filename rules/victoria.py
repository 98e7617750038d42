#!/usr/bin/env python3
"""Prints rules/victoria-metrics/stragglers.yaml: rules/stragglers.yaml for vmalert.

A rule of Prometheus reads what the one before it has recorded a moment ago. With vmalert that is not to be seen until the next
evaluation, so a chain of nine rules would be 45 s late. There each rule has those that it reads as `WITH` templates of MetricsQL.
"""

import pathlib
import re
import textwrap

FOLDER = pathlib.Path(__file__).resolve().parent
HEAD = """# rules/stragglers.yaml for vmalert, which sees what a rule recorded only at the next evaluation: each rule has those that it reads
# as templates of MetricsQL. Load it in place of that file. Printed by rules/victoria.py.
"""
RULE = re.compile(r"      - record: (\S+)\n        expr: (?:\|\n((?:          .*\n)+)|(.+)\n)")
# Of the past only what was recorded.
NAME = re.compile(r"(?:process|peers|rank):gpucause_fleet_\w+:\w+(?![\w:\[]| offset)")


def template(name):
    return name.replace(":", "_")


def with_templates(name, expression, before):
    """The expression, with templates for all that it reads of the rules before it."""
    needed, pending = set(), [expression]
    while pending:
        for found in NAME.findall(pending.pop()):
            if found in before and found != name and found not in needed:
                needed.add(found)
                pending.append(before[found])
    if not needed:
        return expression

    def replaced(text):
        return NAME.sub(lambda found: template(found[0]) if found[0] in needed else found[0], text)

    templates = ",\n".join(f"{template(own)} = (\n{textwrap.indent(replaced(text), '  ')}\n)" for own, text in before.items() if own in needed)
    return f"WITH (\n{textwrap.indent(templates, '  ')}\n)\n{replaced(expression)}"


def rewritten(text):
    before = {}

    def rule(found):
        name, block, line = found.groups()
        expression = textwrap.dedent(block).rstrip() if block else line
        body = with_templates(name, expression, before)
        before[name] = expression
        return f"      - record: {name}\n        expr: |\n{textwrap.indent(body, ' ' * 10)}\n"

    groups = text.index("groups:")
    return HEAD + RULE.sub(rule, text[groups:])


if __name__ == "__main__":
    print(rewritten((FOLDER / "stragglers.yaml").read_text()), end="")
