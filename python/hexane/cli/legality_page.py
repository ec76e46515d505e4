"""Writes docs/legality.md, the page of what runs where: `python -m hexane.cli.legality_page > docs/legality.md`."""

from collections.abc import Iterator

from hexane.ops import USER_OPS
from hexane.targets.legality import disputes, floors, layers, mil_ops, op_status
from hexane.targets.query import load_chip, offsets

CHIPS = ("h13", "h14", "h15")  # nothing needs a later family
HEAD = """# What runs where

Which ops the engine runs, by the family of the chip, for a program in MIL: native, decomposed into other ops of the engine, on the host,
or rejected by Apple's compiler. `hexane check MODEL` answers for a network, with shapes and attributes; `hx.targets.op_status(op, chip)`
for one op, with the rule and its source. Nothing runs in MIL before A13, and nothing needs more than A15.

This page is derived from `python/hexane/targets/shared/floors.toml`, by `python -m hexane.cli.legality_page > docs/legality.md`.
"""


def page() -> str:
    return "\n".join([HEAD, *_ops(), "", *_catalogue(), "", *_layers(), "", *_disputes(), ""])


def _ops() -> Iterator[str]:
    yield "## Ops of MIL, and what other sources name beside them\n"
    yield f"| op | unit | {' | '.join(str(load_chip(c).family) for c in CHIPS)} | layer of a netplist | why not, and what instead |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for floor in sorted(floors().values(), key=lambda f: f.op):
        verdicts = [op_status(floor.op, chip).verdict for chip in CHIPS]
        why = "; ".join(filter(None, (floor.because, floor.change)))
        yield f"| {floor.op} | {floor.unit} | {' | '.join(verdicts)} | {floor.layer} | {why} |"


def _catalogue() -> Iterator[str]:
    yield "## Ops of Hexane that MIL calls otherwise, or writes with several\n"
    yield "| op | in MIL | A13 | A14 | A15 |"
    yield "| --- | --- | --- | --- | --- |"
    for op in USER_OPS.values():
        if mil_ops(op.name) not in (None, (op.name,)):
            verdicts = [op_status(op.name, chip).verdict for chip in CHIPS]
            yield f"| {op.name} | {', '.join(op.mil) or 'nothing'} | {' | '.join(verdicts)} |"


def _layers() -> Iterator[str]:
    yield "## Layers of a netplist\n"
    yield "| layer | byte of the chip | validator | constructor | code generation fails |"
    yield "| --- | --- | --- | --- | --- |"
    for layer in layers().values():
        byte = ", ".join(offsets(f"gates.{layer.gate}")) if layer.gate else ""
        fails = "" if layer.fails is None else "always" if layer.fails == "always" else f"before {layer.fails}"
        own = ("yes" if layer.export else "no", "yes" if layer.export and layer.descriptor else "no")
        yield f"| {layer.name} | {byte} | {' | '.join(own)} | {fails} |"


def _disputes() -> Iterator[str]:
    yield "## What sources disagree about\n"
    yield "| op | taken | why | claims |"
    yield "| --- | --- | --- | --- |"
    for op, row in disputes().items():
        claims = "; ".join(f"{c['says']} ({c['source']}, {c['status']})" for c in row["claims"])
        yield f"| {op} | {row['taken']} | {row['why']} | {claims} |"


if __name__ == "__main__":
    print(page(), end="")
