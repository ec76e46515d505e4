"""The time of a training step by its use: the engine, and this CPU's products, updates, other work and waiting."""

from hexane import _core
from hexane.ops.records.optimizers import OPS as OPTIMIZERS
from hexane.runtime import Model
from hexane.runtime.call_trace import lane_of

LANES = ("engine", "ranks", "wait", "products", "updates", "other")
ASIDE = ("engine", "ranks")  # they run while this CPU computes
PRODUCTS = frozenset(
    (
        *("matmul", "accumulating_matmul", "encoded_matmul", "encoded_rows_matmul", "linear", "conv", "conv_transpose"),
        "scaled_dot_product_attention",
    )
)
UPDATES = frozenset({*(op.name for op in OPTIMIZERS), "reduce_sum_square"})  # the latter: of gradients, for their norm


class LaneTimes:
    """Times the calls of a model. Each `read` needs a call before it.

    The model is profiled from then on, which costs two readings of the clock for each of its steps.
    """

    def __init__(self, net: Model) -> None:
        net.profile()
        self._core = net._core
        self._lanes = [_lane(step) for step in net.steps]
        self._waits = any(lane in ASIDE for lane in self._lanes)

    def read(self) -> dict[str, float]:
        """Milliseconds of the last call by lane, of those lanes that took any.

        "engine": programs on a device, and "ranks": sums over several processes; both may run while this CPU computes.
        Of this CPU: "wait" for them, and between steps; "products"; "updates" of params, with the norm of their
        gradients; and "other".
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
