"""The page docs/legality.md on what runs where: `python -m hexane.cli.pages legality.md` prints it."""

import inspect
from collections.abc import Iterator

from hexane.ops import USER_OPS
from hexane.passes.retarget.forms import FORMS
from hexane.passes.retarget.writer import Form
from hexane.targets.legality import disputes, floors, layers, mil_ops, op_status
from hexane.targets.query import load_chip, offsets

CHIPS = ("h13", "h14", "h15")  # a chip of each family; no op needs a later one
HEAD = """# What runs where

Which ops the engine runs, by the family of the chip, for a program in MIL: native, decomposed into other ops of the engine, on the host,
or rejected by Apple's compiler. `hexane check MODEL` answers for a network, with shapes and attributes; `hx.targets.op_status(op, chip)`
for one op, with the rule and its source. Nothing runs in MIL before family A13, and nothing needs more than family A15.

This page is derived from `python/hexane/targets/shared/floors.toml`.
"""

NOT_DONE = """\
Statements of the guide's chapter on code generation for each family ("ch35") and of ANEForge's page on deployment across chips ("cross-chip")
that nothing here follows, or not as they stand. `tests/validate/test_published_tables.py` and `tests/targets` hold most of the others.

| statement | source | why not |
| --- | --- | --- |
| The compiler tells targets apart by the length and the first letters of a name. | ch35 | Names are compared whole. |
| h15m, h15p, h15s and h15d are names that the compiler knows. | ch35 | Nothing but the names is published. They do not parse, and the error lists those that do. |
| h13 and h17s share one base of parameters. | ch35 | No number follows from it, and their measured limits differ: each has its own. |
| 52, 31, 2 and 3 ops have the four floors; 29 and 45 templates those of families A14 and A15; some are for families A16, A17 and A18 alone, with those of fp8 among them. | ch35 | Only some of the ops are named. Those are all checked. |
| Eight ops with regions and four of the texture engine are legal by a test of their own, all others by their floor. | ch35 | How the compiler asks, not what it answers: programs here have no regions, and the four ops have rows above. |
| Families A11 and A12 floor a quotient by a rounded reciprocal, which may give the wrong integer at a boundary. | ch35 | A form that gives wrong integers is not written: the host computes `floor_div` for them. |
| A slice that begins inside the height goes the way of one inside the width. | ch35 | Measured as harmless on every chip that was tried; only the width is warned of, and computed so. |
| Slices inside a row are a hazard on every generation that has patches. | ch35 | Measured as clean from family A16 on. Chips are warned of by what silicon showed. |
| From family A14 on such slices are clean. | cross-chip | ANEForge 0.4.0 measured M2 Pro and M2 Max, which saturate. Both claims are in docs/targets.md. |
| Nothing else makes a finite number infinite on one chip and not on another. | ch35 | Sums do, where one chip computes a convolution by Winograd's products and the other does not. `hx.predict_fp16_divergence` says which ops that concerns, and which sums can overflow. |
| The width of a patch is a rounded logarithm between bounds (0x3f8, 0x400, 0x410) in a field of four bits; transfers are counted in granules (0x1c0); the scale of a crop is 1 / (extent - 1). | ch35 | Such numbers decide layouts. What they do to values, the slice inside a row, is warned of and computed. |
| Which of three ways a chip without a texture engine resizes, by byte 0x812 and the small kernels. | ch35 | The conditions are not published whole. The first form above that runs is taken, and that it rounds otherwise is a hazard in the decisions. |
| A transpose in one piece keeps some rules of divisibility. | ch35 | The divisors are not published; the bounds are checked. |
| Strided and unicast convolutions have a largest number of input channels (0x328). | ch35 | The number is not published. |
| Limits of convolutions and pools at 0x88, 0x90 and 0x98, of tensors up to 0x1a8, of the cost model at 0x240 and 0x248. | ch35, table 35.6 | Values are published for 0x138 and 0x158 alone. |
| From one core's weights on family A13 to the next are so many bytes; family A14 shares one copy in groups of cores. | ch35 | The numbers are not published. The two sizes of kernel memory are kept, and weights are counted for each core ([engine.md](engine.md)). |
| Only kernels of eight bits or more are compressible. | ch35 | Kept for integers that a layer reads. Palettes of four bits stream from family A13 on (measured on M1), so it cannot hold for them. |
| Family A13 checks gathers along channels, height and width once more (IsValidForH13GatherNCH). | ch35 | What it asks for beyond the order of axes is not published; that and the conditions of the other check are kept. |
| Source and result fields of a descriptor move with its generation. | ch35 | Their offsets are not published; those of the patch width are in docs/targets.md. |
| A defect writes the flag of reflected tile borders at a wrong place on generation 7. | ch35 | No descriptor is written here. Described in docs/targets.md and by `hexane targets --descriptors`. |
| Image formats of ports: up to 16 for each chip, YUV 4:2:0 on family A15 alone. | ch35 | Ports are plain tensors here. How many there are is in `hal.interchange_formats`, YUV in `gates.yuv420`. |
| The cost model: a constant of 0.0008, pairs scaled by the size, latencies of family A15. | ch35, table 35.7 | The formula is not published, and the text numbers families otherwise than its own listing. What the table prints is in `hx.targets.analytic_costs`. |
| A family's number is a target to compile for. | cross-chip | Families and tiers share names and mean different chips. `hx.targets.arch_for_family` and `arch_for_tier` name a target. |
| Latency and peak of a program on another chip. | cross-chip | No verdict depends on speed. `hexane estimate` and `hx.estimate` give the latency on each chip as an interval ([cost.md](cost.md)); a report says the least that a call takes. |
| Choosing an encoding of weights by what streams on the chip; how much faster that is (2.37 times on M1, 1.6 to 1.8 on others); sparse from half zeros on. | cross-chip | `compress=` and `hexane compress` store weights in fewer bits ([compression.md](compression.md)), chosen by error and size, and reports say what streams. How much faster that is chooses nothing: the gains are disputed, others measured none for int8. |
| Apple's runtime, asked on a Mac to compile for a chip by name. | cross-chip | `hx.cross_compile_check` compiles here, from any machine; the name of a chip that is none is an error in both. |
| Such a check refuses programs of several segments. | cross-chip | Here they are checked too, and the answer says that some ops are left to the host. |
| A warning where training scales gradients of convolutions above 4,094 on family A13, and how near chips come to each other in training. | cross-chip | Gradients and training steps compile for a chip and compute in its arithmetic on any CPU ([training.md](training.md)). A slice above 4,094 is warned of as in any network; how near chips come to each other in training is not predicted. |
"""

NOT_CHECKED = """\
Other published statements about what chips take that no verdict depends on, and why.

| statement | source | why it is not checked |
| --- | --- | --- |
| The number of groups of a convolution has a range for each chip. | guide app. B | The ranges are not published. A descriptor's field of 13 bits would end them at 8,191. |
| Each chip has a list of the activations it takes. | guide app. B | The lists are not published; modes above 46 are refused everywhere. |
| The extents of a pool are multiples of its stride. | guide app. B | It is not said which extents, and whether with their pads. Read for inputs it would refuse most networks that pool odd images. |
| The depth of a pool's window has a bound. | guide app. B | Only those of its height and width are published. |
| Resizing, slices and reductions place products of their factors below the largest channels, heights and widths. | placement study | What the factors are is not published. |
| A newer compiler knows h19, m12 and u4, and has more parameters. | M6 study | Nothing but the names is published. They do not parse, and the error lists those that do. |
| The messages of checks inside the compiler, beside the validators'. | guide ch22 | They name no numbers that could be compared. |
"""


def page() -> str:
    title = "## What chapter 35 and the cross-chip document say and Hexane does not do\n"
    rest = [title, NOT_DONE, "## What else is not checked\n", NOT_CHECKED.rstrip(), ""]
    return "\n".join([HEAD, *_ops(), "", *_catalogue(), "", *_forms(), "", *_layers(), "", *_disputes(), "", *rest])


def _ops() -> Iterator[str]:
    yield "## Ops of MIL, and what other sources name beside them\n"
    yield (
        f"| op | unit | {' | '.join(str(load_chip(c).family) for c in CHIPS)} | layer of a netplist | why not, and what"
        " instead |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for floor in sorted(floors().values(), key=lambda f: f.op):
        verdicts = [op_status(floor.op, chip).verdict for chip in CHIPS]
        why = "; ".join(filter(None, (floor.because, floor.change)))
        yield f"| {floor.op} | {floor.unit} | {' | '.join(verdicts)} | {floor.layer} | {why} |"


def _catalogue() -> Iterator[str]:
    yield "## Ops of Hexane that MIL calls otherwise, or writes with several\n"
    yield "| op | in MIL | family A13 | family A14 | family A15 |"
    yield "| --- | --- | --- | --- | --- |"
    for op in USER_OPS.values():
        if mil_ops(op.name) not in (None, (op.name,)):
            verdicts = [op_status(op.name, chip).verdict for chip in CHIPS]
            yield f"| {op.name} | {', '.join(op.mil) or 'nothing'} | {' | '.join(verdicts)} |"


def _forms() -> Iterator[str]:
    yield "## What is written instead\n"
    yield (
        "An op that a chip does not run as it is becomes one of its forms when the network is compiled: the first whose"
        " every op runs on\nthat chip (`python/hexane/passes/retarget/`). What has none stays for the host. What a form"
        " changes in rounding is a hazard in\n`net.program.decisions`.\n"
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
        fails = "" if layer.fails is None else "always" if layer.fails == "always" else f"before family {layer.fails}"
        own = ("yes" if layer.export else "no", "yes" if layer.export and layer.descriptor else "no")
        yield f"| {layer.name} | {byte} | {' | '.join(own)} | {fails} |"


def _disputes() -> Iterator[str]:
    yield "## What sources disagree about\n"
    yield "| op | taken | why | claims |"
    yield "| --- | --- | --- | --- |"
    for op, row in disputes().items():
        claims = "; ".join(f"{c['says']} ({c['source']}, {c['status']})" for c in row["claims"])
        yield f"| {op} | {row['taken']} | {row['why']} | {claims} |"
