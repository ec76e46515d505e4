"""Splits the time of a training step into lanes: the engine, sums over ranks, and this CPU's products, updates, other
work and waiting."""

from hexane import _core
from hexane.ops.records.optimizers import OPS as OPTIMIZERS
from hexane.runtime import Model
from hexane.runtime.call_trace import lane_of

LANES = ("engine", "ranks", "wait", "products", "updates", "other")
ASIDE = ("engine", "ranks")  # lanes that run in parallel with this CPU
PRODUCTS = frozenset(
    (
        *("matmul", "accumulating_matmul", "encoded_matmul", "encoded_rows_matmul", "linear", "conv", "conv_transpose"),
        "scaled_dot_product_attention",
    )
)
# reduce_sum_square computes the gradients' norm.
UPDATES = frozenset({*(op.name for op in OPTIMIZERS), "reduce_sum_square"})


class LaneTimes:
    """Times the calls of a model. `read` returns the times of the last call.

    LaneTimes enables the model's profiling, which reads the clock twice in each step of the program.
    """

    def __init__(self, net: Model) -> None:
        net.profile()
        self._core = net._core
        self._lanes = [_lane(step) for step in net.steps]
        self._waits = any(lane in ASIDE for lane in self._lanes)

    def read(self) -> dict[str, float]:
        """Returns milliseconds of the last call by lane. Lanes without time are left out.

        "engine": programs on a device, and "ranks": sums over processes; both may run in parallel with this CPU. On
        this CPU: "wait": for engine and ranks, and between steps; "products"; "updates": of params, and the norm of
        their gradients; "other".
        """
        spans = self._core.timeline
        times = dict.fromkeys(LANES, 0)
        for number, begin, end in spans:
            times[self._lanes[number]] += end - begin
        if self._waits and spans:
            whole = max(end for _, _, end in spans) - min(begin for _, begin, _ in spans)
            times["wait"] = max(0, whole - sum(time for lane, time in times.items() if lane not in ASIDE))
        return {lane: round(time / 1e6, 3) for lane, time in times.items() if time}


def _lane(step: "_core.StepInfo") -> str:
    if (lane := lane_of(step)) in ASIDE:
        return lane
    kernel = step["kernel"]
    return "products" if kernel in PRODUCTS else "updates" if kernel in UPDATES else "other"
