"""The catalogue as the page docs/ops.md: `python -m hexane.cli.ops_page > docs/ops.md`."""

import sys

from hexane.build import signature
from hexane.ops import FAMILIES
from hexane.ops.spec import Op

HEAD = """\
# Ops

Every op has a function in `hexane`. Inputs go by position or name, attributes (behind the `*`) by name; what has no default
is required. The ONNX column names ops that mean exactly this; the importer builds many others out of several.

This page is derived from the records in `python/hexane/ops`, by `python -m hexane.cli.ops_page > docs/ops.md`.
"""


def page() -> str:
    """The page's text."""
    return "\n".join([HEAD, *(_family(module.__doc__ or "", module.OPS) for module in FAMILIES)])


def _family(doc: str, ops: tuple[Op, ...]) -> str:
    title = " ".join(doc.strip().split("\n\n")[0].split()).rstrip(".")
    rows = [f"| `{op.name}{signature(op)}` | {_cell(op.doc)} | {', '.join(op.onnx)} |" for op in ops]
    return "\n".join([f"## {title}\n", "| call | what it is | ONNX |", "|---|---|---|", *rows, ""])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


if __name__ == "__main__":
    sys.stdout.write(page())
