"""The page docs/ops.md with the catalogue: `python -m hexane.cli.pages ops.md` prints it."""

from hexane.build import signature
from hexane.ops import FAMILIES
from hexane.ops.gradients.rule import zero
from hexane.ops.spec import Op

HEAD = """\
# Ops

Every op has a function in `hexane`. Inputs are passed by position or name, attributes (after the `*`) by name; a parameter without a default is required. The ONNX column names ops with exactly this meaning; the importer writes many other ONNX ops as several ops. The
gradient column says how `hx.grad` differentiates an op: by a rule of its own, or through the ops that it expands into, or it gives the reason why there is no gradient.

This page is derived from the records in `python/hexane/ops`.
"""


def page() -> str:
    return "\n".join([HEAD, *(_family(module.__doc__ or "", module.OPS) for module in FAMILIES)])


def _family(doc: str, ops: tuple[Op, ...]) -> str:
    title = " ".join(doc.strip().split("\n\n")[0].split()).rstrip(".")
    rows = [f"| `{op.name}{signature(op)}` | {_cell(op.doc)} | {_gradient(op)} | {', '.join(op.onnx)} |" for op in ops]
    return "\n".join([f"## {title}\n", "| call | what it is | gradient | ONNX |", "|---|---|---|---|", *rows, ""])


def _gradient(op: Op) -> str:
    if op.grad is zero:
        return "0"
    if op.grad is not None:
        return "rule"
    if op.no_grad:
        return f"none: {op.no_grad}"
    if any(attr.kind == "graph" for attr in (op.attrs or {}).values()):
        return "of its bodies"
    if op.kernel and op.expand is None:
        return "none: integers, truths or random numbers"
    return "as its ops"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")
