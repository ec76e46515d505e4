"""The list of passes in the page docs/passes.md."""

import inspect
import re

from hexane.passes import order
from hexane.passes.order import Pass


def passes_in_order() -> str:
    """Returns a section per row of `order.ORDER`: the pass, its pipelines, and the reason for its place."""
    source = inspect.getsource(order).partition("ORDER = (\n")[2]
    rows = re.findall(r"((?: +# .*\n)*) +Pass\((\w+),", source)
    names = [name for _, name in rows]
    return "\n".join(
        _section(row, re.sub(r"\s*# ", " ", comment).strip(), name in names[:i])
        for i, (row, (comment, name)) in enumerate(zip(order.ORDER, rows, strict=True))
    )


def _section(row: Pass, why_here: str, again: bool) -> str:
    """Returns the section of a row, with the docstring of the pass if the pass has not occurred before."""
    rule, *conditions = str(inspect.getdoc(row.run)).split("\n\n")
    block = (
        [] if again else ["```", rule.replace("  ->  ", "\n  ->  "), "```", *(c.replace("\n", " ") for c in conditions)]
    )
    runs = f"*Runs in:* {', '.join(row.pipelines)}."
    place = [f"*Its place:* {why_here[0].lower()}{why_here[1:]}"] if why_here else []
    return "\n".join(
        [f"### {row.name}{' again' if again else ''}", "", *block, *([""] * bool(block)), runs, *place, ""]
    )
