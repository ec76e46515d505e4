"""Writes docs/legality.md, the page of what runs where: `python -m hexane.cli.legality_page > docs/legality.md`."""

import inspect
from collections.abc import Iterator

from hexane.ops import USER_OPS
from hexane.passes.retarget.forms import FORMS
from hexane.passes.retarget.writer import Form
from hexane.targets.legality import disputes, floors, layers, mil_ops, op_status
from hexane.targets.query import load_chip, offsets

CHIPS = ("h13", "h14", "h15")  # nothing needs a later family
HEAD = """# What runs where

Which ops the engine runs, by the family of the chip, for a program in MIL: native, decomposed into other ops of the engine, on the host,
or rejected by Apple's compiler. `hexane check MODEL` answers for a network, with shapes and attributes; `hx.targets.op_status(op, chip)`
for one op, with the rule and its source. Nothing runs in MIL before A13, and nothing needs more than A15.

This page is derived from `python/hexane/targets/shared/floors.toml`, by `python -m hexane.cli.legality_page > docs/legality.md`.
"""

NOT_CHECKED = """\
Published statements about what chips take that no verdict depends on, and why. "ch35" is the guide's chapter on code generation for each
family, "cross-chip" ANEForge's page on deployment across chips.

| statement | source | why it is not checked |
| --- | --- | --- |
| The number of groups of a convolution has a range for each chip. | guide app. B | The ranges are not published. A descriptor's field of 13 bits would end them at 8,191. |
| Each chip has a list of the activations it takes. | guide app. B | The lists are not published; modes above 46 are refused everywhere. |
| The extents of a pool are multiples of its stride. | guide app. B | It is not said which extents, and whether with their pads. Read for inputs it would refuse most networks that pool odd images. |
| The depth of a pool's window has a bound. | guide app. B | Only those of its height and width are published. |
| A13 checks gathers along channels, height and width once more (IsValidForH13GatherNCH). | ch35 | What it asks for is not published; the conditions of the other gate are checked. |
| Strided and unicast convolutions have a largest number of input channels (0x328). | ch35 | What is published of the numbers is in `hal.unicast_channels`; what happens above them is not. |
| A11 and A12 floor a quotient by a rounded reciprocal, which may give the wrong integer at a boundary. | ch35 | A form that changes results is not written: the host computes `floor_div` for them. |
| A transpose in one piece keeps some rules of divisibility. | ch35 | The divisors are not published; only the bounds are checked. |
| Which of three forms a resize gets without a texture engine, by byte 0x812 and the small kernels. | ch35 | The conditions are not published whole. The verdict says that the forms round differently. |
| Resizing, slices and reductions place products of their factors below the largest channels, heights and widths. | placement study | What the factors are is not published. |
| Matrix products become convolutions where the right side fits, and are cut along the height. | ch35 | Code generation decides it after every check; no op is refused for it. |
| Weights are laid out once for each core on A13, and shared from A14 on. | ch35 | A layout, not a limit: the two sizes are checked (`validate.compute.kernel_memory`). |
| Only kernels of eight bits or more are compressible. | ch35 | Palettes of four bits stream on every chip (measured), so it is not clear what the rule counts. |
| A slice that begins inside the height goes the way of one inside the width. | ch35 | Measured as harmless on every chip that was tried; only the width is warned of. |
| Slices inside a row are a hazard on every generation that has patches. | ch35 | Measured as clean from A16 on. Chips are warned of by what silicon showed. |
| Some ops exist for families A16, A17 and A18 alone, those of fp8 among them; 52, 31, 2 and 3 ops have the floors, 29 and 45 templates those of A14 and A15. | ch35 | The ops are not named, but those in the tables; these are all checked. |
| Eight ops with regions and four of the texture engine are legal by a test of their own, all others by their floor. | ch35 | How the compiler asks, not what it answers: programs here have no regions, and the four ops have rows. |
| h15m, h15p, h15s and h15d are names the compiler knows; a newer one knows h19, m12 and u4. | ch35, M6 study | Nothing but the names is published. They do not parse, with near names in the error. |
| The compiler tells targets apart by the length and the first letters of a name. | ch35 | Names are compared whole. |
| h13 and h17s share one base of parameters. | ch35 | No number follows from it; their measured limits differ. |
| Image formats of ports: up to 16 for each chip, YUV 4:2:0 on A15 alone. | ch35, guide ch34 | Ports are plain tensors here. How many there are is in `hal.interchange_formats`, YUV in `gates.yuv420`. |
| Source and result fields of a descriptor move with its generation. | ch35 | Their offsets are not published; those of the patch width are in docs/targets.md. |
| The width of a patch is a rounded logarithm between bounds (0x3f8, 0x400, 0x410), strides of transfers are counted in granules (0x1c0). | ch35 | Such numbers decide layouts; what they do to values, the slice inside a row, is warned of. |
| A defect writes the flag of reflected tile borders at a wrong place on generation 7. | ch35 | Described in docs/targets.md; no op is refused for it. |
| The cost model: a constant of 0.0008, pairs scaled by the size, latencies of A15. | ch35, table 35.7 | The formula is not published. What is printed of the table is in `hx.targets.analytic_costs`. |
| Later compilers have more parameters. | M6 study | What they decide is not published. |
| The messages of checks inside the compiler, beside the validators'. | guide ch22 | They name no numbers that could be compared. |
| Latency and peak of a program on another chip. | cross-chip | No verdict depends on speed; a cost model is another matter. |
| Choosing an encoding of weights by what streams on the chip. | cross-chip | Weights are compiled as they are. Reports say what streams. |
| Asking Apple's runtime to compile for a chip. | cross-chip | Needs a Mac; everything else works without one. |
| A warning where training scales gradients of convolutions above 4,094 on A13, and how near chips come to each other in training. | cross-chip | There is no training. |
| A warning at compile time where two chips round differently. | cross-chip | A compilation has one target. `hx.targets.fp16_divergence` answers for two. |
"""


def page() -> str:
    """The page's text."""
    rest = ["## What is not checked\n", NOT_CHECKED.rstrip(), ""]
    return "\n".join([HEAD, *_ops(), "", *_catalogue(), "", *_forms(), "", *_layers(), "", *_disputes(), "", *rest])


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


def _forms() -> Iterator[str]:
    yield "## What is written instead\n"
    yield (
        "An op that a chip does not run as it is becomes one of its forms when the network is compiled: the first whose every op runs on\n"
        "that chip (`python/hexane/passes/retarget/`). What has none stays for the host. What a form changes in rounding is a hazard in\n"
        "`net.program.decisions`.\n"
    )
    yield "| form | of | what it writes |"
    yield "| --- | --- | --- |"
    of: dict[Form, list[str]] = {}
    for name, forms in FORMS.items():
        for form in forms:
            of.setdefault(form, []).append(name)
    for form, names in sorted(of.items(), key=lambda item: (len(item[1]), item[0].__name__)):
        text = inspect.getdoc(form) or ""
        ops = ", ".join(names) if len(names) < len(FORMS) else "all that have such axes, or a record that says how"
        yield f"| {form.__name__} | {ops} | {' '.join(text.split(chr(10) * 2)[0].split()).replace('|', '&#124;')} |"


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
