"""A lower bound of the estimated time of a call of a divided network, before it is compiled: calls, copies, and the
time of the products alone. The estimate of the compiled program is never below it, but a call may be."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import fsum, prod
from typing import Any

from hexane.cost.formula import call_us, compute_us, transfer_us
from hexane.cost.parameters import Rates, calibration
from hexane.graph import Node
from hexane.program import Segment, SegmentPort
from hexane.program.work import multiply_adds
from hexane.targets import Chip


@dataclass(frozen=True, slots=True)
class Least:
    """A lower bound of the estimate of a call. us: the bound, floor_us + copies_us + products_us. submissions: the
    number of calls of the engine. measured_on: the product whose rates were used; extrapolated: true if another product
    was asked for."""

    us: float
    submissions: int
    floor_us: float
    copies_us: float
    products_us: float
    measured_on: str
    extrapolated: bool

    def record(self) -> dict[str, Any]:
        """The lower bound as a JSON object."""
        return asdict(self)


def least(segments: Sequence[Segment], chip: Chip) -> Least | None:
    """The lower bound for a network's segments on a chip. None if the engine computes nothing."""
    engine, known = [segment for segment in segments if segment.device == "ane"], calibration(chip)
    if not engine:
        return None
    rates = known.rates
    floor = len(engine) * rates.floor_us
    read = sum(_fp16_bytes(port) for segment in engine for port in segment.inputs)
    written = sum(_fp16_bytes(port) for segment in engine for port in segment.outputs)
    copies = float(call_us(0, read, written, rates.floor_us, rates.read_gbps, rates.write_gbps))
    products = fsum(_product_us(node, rates) for segment in engine for node in segment.nodes) * min(known.further, 1)
    return Least(floor + copies + products, len(engine), floor, copies, products, known.measured_on, known.extrapolated)


def _fp16_bytes(port: SegmentPort) -> int:
    return port.type.size * min(port.type.dtype.bits, 16) // 8


def _product_us(node: Node, rates: Rates) -> float:
    """A lower bound on the time of a product alone: at the fastest rate, with constant weights read once."""
    operations = 2 * multiply_adds(node)
    if not operations:
        return 0.0
    weight = node.inputs[1]
    assert weight is not None
    spatial = "conv" in node.op and prod(weight.type.shape[2:]) > 1
    gops = max(rates.gemm_gops, rates.conv_gops) if spatial else rates.gemm_gops
    known = weight.type.size * 2 if weight.node.op in ("const", "param") and weight.type.dtype.kind == "float" else 0
    return max(float(compute_us(operations, gops)), float(transfer_us(known, rates.stream_gbps)))
