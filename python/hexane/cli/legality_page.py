"""The page docs/legality.md on what runs where: `python -m hexane.cli.pages legality.md` prints it."""

import inspect
from collections.abc import Iterator

from hexane.ops import USER_OPS
from hexane.passes.retarget.forms import FORMS
from hexane.passes.retarget.writer import Form
from hexane.targets.floors import floors, layers, mil_ops
from hexane.targets.legality import disputes, op_status
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
that Hexane does not follow, or follows in another form. `tests/validate/test_published_tables.py` and `tests/targets` test most of the other statements.

| statement | source | why not |
| --- | --- | --- |
| The compiler tells targets apart by the length and the first letters of a name. | ch35 | Hexane compares whole names. |
| h15m, h15p, h15s and h15d are names that the compiler knows. | ch35 | Only the names are published. Hexane refuses them, and the error lists the known names. |
| h13 and h17s share one base of parameters. | ch35 | No number follows from this statement, and measured limits of the two chips differ: each has its own. |
| 52, 31, 2 and 3 ops have the four floors; 29 and 45 templates those of families A14 and A15; some are for families A16, A17 and A18 alone, with those of fp8 among them. | ch35 | Only some of these ops are named. Tests check all the named ops. |
| Eight ops with regions and four of the texture engine are legal by a test of their own, all others by their floor. | ch35 | The statement says how the compiler tests ops, not the result. Hexane's programs have no regions, and the four ops have rows above. |
| Families A11 and A12 floor a quotient by a rounded reciprocal, which may give the wrong integer at a boundary. | ch35 | Hexane writes no form that gives wrong integers: on these chips the host computes `floor_div`. |
| A slice that begins inside the height is handled like a slice inside the width. | ch35 | On every measured chip, slices along the height change no number. Hexane warns of slices along the width only, and computes only them as the chip does. |
| Slices inside a row are a hazard on every generation that has patches. | ch35 | Measurements show no such error from family A16 on. Hexane warns of the chips on which it was measured. |
| From family A14 on, slices inside a row change no number. | cross-chip | ANEForge 0.4.0 measured M2 Pro and M2 Max, which saturate. Both claims are in docs/targets.md. |
| Nothing else makes a finite number infinite on one chip and not on another. | ch35 | Sums do, where one chip computes a convolution by Winograd's products and the other does not. `hx.predict_fp16_divergence` names these convolutions, and the sums that can overflow. |
| The width of a patch is a rounded logarithm between bounds (0x3f8, 0x400, 0x410) in a field of four bits; transfers are counted in granules (0x1c0); the scale of a crop is 1 / (extent - 1). | ch35 | These numbers decide layouts. Their only effect on values is on slices inside a row; Hexane warns of these slices, and computes them as the chip does. |
| Which of three ways a chip without a texture engine resizes, by byte 0x812 and the small kernels. | ch35 | The conditions are not fully published. Hexane takes the first form above that runs; a decision "hazard" says that it may round differently. |
| A transpose in one piece keeps some rules of divisibility. | ch35 | The divisors are not published. Hexane checks the bounds. |
| Strided and unicast convolutions have a largest number of input channels (0x328). | ch35 | The number is not published. |
| Limits of convolutions and pools at 0x88, 0x90 and 0x98, of tensors up to 0x1a8, of the cost model at 0x240 and 0x248. | ch35, table 35.6 | Values are published only for 0x138 and 0x158. |
| On family A13 the weights of neighbouring cores lie a fixed number of bytes apart; on family A14 groups of cores share one copy. | ch35 | The numbers are not published. Hexane uses the two sizes of kernel memory, and counts weights for each core ([engine.md](engine.md)). |
| Only kernels of eight bits or more are compressible. | ch35 | Hexane applies this statement to integers that a layer reads. It cannot be true of palettes: palettes of four bits stream from family A13 on (measured on M1). |
| Family A13 checks gathers along channels, height and width once more (IsValidForH13GatherNCH). | ch35 | Its conditions are not published, except the order of axes. Hexane checks this order, and the conditions of the general check of gathers. |
| Source and result fields of a descriptor move with its generation. | ch35 | Their offsets are not published; those of the patch width are in docs/targets.md. |
| A defect writes the flag of reflected tile borders at a wrong place on generation 7. | ch35 | No verdict depends on descriptors. docs/targets.md and `hexane targets --descriptors` describe the defect. |
| Image formats of ports: up to 16 for each chip, YUV 4:2:0 on family A15 alone. | ch35 | Hexane's ports are plain tensors. `hal.interchange_formats` has the number of formats of a chip, `gates.yuv420` says whether YUV is one. |
| The cost model: a constant of 0.0008, pairs scaled by the size, latencies of family A15. | ch35, table 35.7 | The formula is not published, and text and listing of the chapter number families differently. `hx.targets.analytic_costs` has the numbers of the table. |
| A family's number is a target to compile for. | cross-chip | Families and tiers share names and mean different chips. `hx.targets.arch_for_family` and `arch_for_tier` name a target. |
| Latency and peak of a program on another chip. | cross-chip | No verdict depends on speed. `hexane estimate` and `hx.estimate` give the latency on each chip as an interval ([cost.md](cost.md)); `hexane check` gives a lower bound of it. |
| Choosing an encoding of weights by what streams on the chip; how much faster that is (2.37 times on M1, 1.6 to 1.8 on others); sparse from half zeros on. | cross-chip | `compress=` and `hexane compress` store weights in fewer bits ([compression.md](compression.md)), chosen by error and size, and reports say what streams. How much faster that is chooses nothing: the gains are disputed, others measured none for int8. |
| On a Mac, Apple's runtime can be asked to compile for a named chip. | cross-chip | `hx.cross_compile_check` compiles on any machine. An unknown name of a chip is an error in both. |
| This check refuses programs of several segments. | cross-chip | Hexane checks them too, and reports that the host runs some ops. |
| A warning where training scales gradients of convolutions above 4,094 on family A13, and how near chips come to each other in training. | cross-chip | Gradients and training steps compile for a chip and compute in its arithmetic on any CPU ([training.md](training.md)). A slice above 4,094 is warned of as in any network; how near chips come to each other in training is not predicted. |
"""

NOT_CHECKED = """\
Other published conditions of chips that no verdict of Hexane tests, and the reasons.

| statement | source | why it is not checked |
| --- | --- | --- |
| The number of groups of a convolution has a range for each chip. | guide app. B | The ranges are not published. A descriptor has 13 bits for this number, which allow at most 8,191. |
| Each chip has a list of the activations it takes. | guide app. B | The lists are not published; every chip refuses modes above 46. |
| The extents of a pool are multiples of its stride. | guide app. B | The guide does not say which extents, and whether they include pads. Applied to inputs, the condition would refuse most networks that pool images with odd sizes. |
| The depth of a pool's window has a bound. | guide app. B | Only the bounds of height and width are published. |
| Resizing, slices and reductions place products of their factors below the largest channels, heights and widths. | placement study | The factors are not published. |
| A newer compiler knows h19, m12 and u4, and has more parameters. | M6 study | Only the names are published. Hexane refuses them, and the error lists the known names. |
| The compiler has checks with messages in addition to the validators. | guide ch22 | The messages name no numbers that Hexane could compare. |
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
        "If a chip does not run an op as it is, the op is written in a form when the network is compiled: the first form"
        " whose ops all run on\nthe chip (`python/hexane/passes/retarget/`). An op without such a form runs on the host."
        ' If a form rounds differently, a decision\n"hazard" in `net.program.decisions` says so.\n'
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
