"""Probes the rounding of reductions: sums beyond fp16 with and without a factor after them, and norms of large
numbers."""

from collections.abc import Sequence

import numpy as np

from hexane.graph import Array
from hexane.report.mac.lifecycle import run
from hexane.report.mac.probe import Case, Context, Probe, Values
from hexane.report.mac.texts import program, result
from hexane.targets.dispatch import dispatch

COUNT = 512
WIDE, ROW = (1, 4, 1, COUNT), (1, 4, 1, 1)
SIGNS = np.where(np.arange(COUNT) % 2, -1.0, 1.0)
CONSTANTS = [
    'tensor<int32, [1]> axes = const()[name = string("axes"), val = tensor<int32, [1]>([-1])];',
    'bool keep = const()[name = string("keep"), val = bool(true)];',
    f'fp16 share = const()[name = string("share"), val = fp16({(1 / COUNT).hex()})];',
    'fp16 epsilon = const()[name = string("epsilon"), val = fp16(0x1p-10)];',
]
SQUARE = result("q", WIDE, "square", "x = x")
MEAN = result("m", ROW, "reduce_mean", "axes = axes, keep_dims = keep, x = x")


def _reduced(op: str, name: str, of: str = "q") -> str:
    return result(name, ROW, op, f"axes = axes, keep_dims = keep, x = {of}")


def _case(lines: Sequence[str], last: str, numbers: Array, want: float) -> Case:
    """Returns a case. lines: the program without its last op; last: that op and its arguments. want: the first number
    of the result."""

    def case(context: Context) -> Values:
        name, qos = f"y_{context.salt}", dispatch().default_qos
        op, _, arguments = last.partition(" ")
        shape = WIDE if op == "layer_norm" else ROW
        text = program({"x": WIDE}, [*CONSTANTS, *lines, result(name, shape, op, arguments)], [name])
        compiled = context.device().compile(text, {}, qos)
        compiled.load(qos)
        x = np.broadcast_to(numbers, WIDE).astype(np.float16)
        first = float(run(compiled, np.ascontiguousarray(x)).reshape(-1)[0])
        return {"first": str(first), "want": want, "right": bool(abs(first - want) <= 0.02 * abs(want))}

    return case


_SUM = "reduce_sum axes = axes, keep_dims = keep, x = q"
_MEAN = "reduce_mean axes = axes, keep_dims = keep, x = "
REDUCTIONS = Probe(
    "reductions",
    "Where does a reduction round, and which numbers do norms hold?",
    {
        # 512 * 40^2 is 819,200, and the mean of the squares is 1600.
        "sum of squares times a factor": _case(
            [SQUARE, _reduced("reduce_sum", "s")], "mul x = s, y = share", 40 * SIGNS, 1600.0
        ),
        "sum of squares alone, 32,000": _case([SQUARE], _SUM, np.sqrt(62.5) * SIGNS, 32000.0),
        "mean of squares": _case([SQUARE], f"{_MEAN}q", 40 * SIGNS, 1600.0),
        "mean of 20,000": _case([], f"{_MEAN}x", np.full(COUNT, 20000.0), 20000.0),
        "variance written out": _case(
            [MEAN, result("d", WIDE, "sub", "x = x, y = m"), result("q", WIDE, "square", "x = d")],
            f"{_MEAN}q",
            20 * SIGNS + 1000,
            400.0,
        ),
        "layer norm of a deviation of 300": _case(
            [], "layer_norm axes = axes, epsilon = epsilon, x = x", 300 * SIGNS, 1.0
        ),
    },
    per_process=6,
)
