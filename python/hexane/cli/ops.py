"""`hexane ops`: lists the catalogue of ops, or shows one op in full."""

from collections.abc import Iterator
from dataclasses import asdict
from difflib import get_close_matches
from math import isfinite
from textwrap import fill
from typing import Annotated, Any

import typer

from hexane.cli.errors import command
from hexane.cli.options import Debug, Json
from hexane.cli.output import print_json, print_table
from hexane.errors import Error
from hexane.ops import USER_OPS
from hexane.ops.attributes import REQUIRED, Attr
from hexane.ops.spec import Op
from hexane.targets.activations import TABLE_OF, Activation, activations

REDUCTIONS = {
    "none": "x is looked up as it is",
    "odd": "|x| is looked up; the result has the sign of x",
    "exp2": "the fraction of x is looked up; the whole part of x is added to the exponent of the result",
    "log2": "the mantissa of x is looked up; the exponent of x is added to the result",
    "sqrt": "the mantissa of x, with an even exponent, is looked up; half the exponent goes to the result",
    "rsqrt": "the mantissa of x, with an even exponent, is looked up; minus half the exponent goes to the result",
    "inverse": "the mantissa of |x| is looked up; minus the exponent goes to the result, which has the sign of x",
    "quarters": "the place of |x| in a quarter of the period is looked up; the other quarters are mirrored",
}


@command
def ops(
    name: Annotated[str | None, typer.Argument(help="Show this op in full.")] = None,
    table: Annotated[bool, typer.Option("--table", help="Show the knots of the engine's table for this op.")] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """List the ops, or show one in full. Inputs: x? is optional, x* one or more."""
    if name is None:
        if table:
            raise Error("[ops] got --table and no op, need the name of one")
        if json:
            print_json({"ops": [_record(op) for op in USER_OPS.values()]})
        else:
            rows = [(op.name, ", ".join(op.inputs), _first_sentence(op.doc)) for op in USER_OPS.values()]
            print_table(("op", "inputs", "what it is"), rows)
        return
    if name not in USER_OPS:
        near = get_close_matches(name, USER_OPS, 3) or [op.name for op in USER_OPS.values() if name in op.onnx]
        hint = f", such as {', '.join(near)}" if near else ""
        raise Error(f"[ops] got {name!r}, need the name of an op{hint} (`hexane ops` lists all)")
    if table:
        _print_table(name, json)
    elif json:
        print_json(_record(USER_OPS[name]))
    else:
        _print_op(USER_OPS[name])


def _print_table(op: str, json: bool) -> None:
    name = TABLE_OF.get(op, op)
    if name not in activations():
        raise Error(
            f"[ops] --table: got {op!r}, which has no table, need one of {', '.join([*activations(), *TABLE_OF])}"
        )
    table = activations()[name]
    if json:
        print_json({"op": op, "table": {key: _plain(value) for key, value in asdict(table).items()}})
        return
    print(f"table      {name} ({table.status}: {table.source})")
    print(f"reduction  {table.reduction}: {REDUCTIONS[table.reduction]}")
    for line in _ends(table):
        print(f"           {line}")
    print("between knots: a straight line\n")
    print_table(("x", name), [(f"{x:g}", f"{y:.10g}") for x, y in zip(table.places, table.knots, strict=True)])


def _ends(table: Activation) -> Iterator[str]:
    """Yields lines on the results beyond the knots."""
    kind, (low, high) = table.reduction, table.domain
    x = "|x|" if kind == "odd" else "x"
    if kind in ("none", "odd", "exp2"):
        yield f"{x} is clamped to the range from {table.clamp[0]:g} to {table.clamp[1]:g}"
    if kind in ("none", "odd"):
        ends = [("from", high, table.right)]
        if table.clamp[0] < low:
            ends.insert(0, ("below", low, table.left))
        for where, place, (slope, offset) in ends:
            yield f"{where} {x} = {place:g}{' on' if where == 'from' else ''}: {slope:.10g} * {x} + {offset:.10g}"
    elif kind == "quarters":
        yield "at infinity: 0"
    elif kind != "exp2":
        below = "" if kind == "inverse" else "; below 0: 0"
        yield f"at 0: {table.at_zero:g}; at infinity: {table.at_infinity:g}{below}"


def _first_sentence(doc: str) -> str:
    return doc.partition(". ")[0].rstrip(".") + "."


def _record(op: Op) -> dict[str, Any]:
    return {
        "name": op.name,
        "doc": op.doc,
        "inputs": list(op.inputs),
        "outputs": list(op.outputs),
        "attributes": {name: _attribute(attr) for name, attr in (op.attrs or {}).items()},
        "onnx": list(op.onnx),
        "runs": _runs(op),
    }


def _attribute(attr: Attr) -> dict[str, Any]:
    record: dict[str, Any] = {"kind": attr.kind, "required": attr.default is REQUIRED}
    if attr.default is not REQUIRED:
        record["default"] = _plain(attr.default)
    if attr.choices:
        record["choices"] = list(attr.choices)
    return record


def _plain(value: Any) -> Any:
    """Returns the value for JSON. Infinities and dtypes, which JSON lacks, become text."""
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    known = value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and isfinite(value))
    return value if known else str(value)


def _runs(op: Op) -> str:
    if not op.kernel:
        return "expands into other ops"
    return "a view: no work at run time" if op.view else f"kernel {op.kernel}"


def _print_op(op: Op) -> None:
    print(f"{op.name}({', '.join(op.inputs)}) -> {', '.join(op.outputs)}\n")
    print(fill(op.doc, 120, break_on_hyphens=False) + "\n")
    if op.attrs:
        rows = []
        for name, attr in op.attrs.items():
            default = "required" if attr.default is REQUIRED else f"{attr.default!r}"
            rows.append((name, attr.kind, default, ", ".join(attr.choices)))
        print_table(("attribute", "kind", "default", "choices"), rows)
        print()
    print(f"onnx    {', '.join(op.onnx) or 'no op has the same attributes; the importer may convert some to this op'}")
    print(f"runs    {_runs(op)}")
