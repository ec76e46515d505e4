"""The work of a program, independent of chip rates: submissions, bytes across the border, and operations and bytes of
each layer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from hexane.program import Program
from hexane.program.layers import Layer

Kind = Literal["gemm", "conv", "attention", "elementwise", "softmax", "norm", "reduction", "move"]
# Kinds of layers whose rate is fitted; "move" computes nothing, attention is two products and a softmax.
KINDS: tuple[Kind, ...] = ("gemm", "conv", "attention", "elementwise", "softmax", "norm", "reduction", "move")
OUTSIDE_ATTENTION = ("conv", "norm", "reduction")
PRODUCTS = ("gemm", "conv", "attention")

_NORMS = ("LayerNorm", "InstanceNorm", "GroupNorm", "RMSNorm", "L2Norm", "LRN", "MinMaxNorm", "LocalResponseNorm")


@dataclass(frozen=True, slots=True)
class LayerDemand:
    """One layer's work. kind: selects the rate. operations: as `Work` counts them. weights: bytes of a product's
    second operand, which the engine streams; data: bytes of the first operand (in a batch of products, of a single
    product). traffic: bytes from and to main memory, without weights. constant: all inputs of a batch share the second
    operand."""

    kind: Kind
    operations: int
    weights: int
    data: int
    traffic: int
    constant: bool = True

    def batched(self, inputs: int) -> "LayerDemand":
        """The demand of this many inputs in one call."""
        grows = 1 if self.constant else inputs
        return replace(
            self,
            operations=self.operations * inputs,
            weights=self.weights * grows,
            data=self.data * (inputs if self.constant else 1),
            traffic=self.traffic * inputs,
        )


@dataclass(frozen=True, slots=True)
class Demand:
    """The work of a program. kind: that of all layers that compute, or "network" if they are of several kinds. read,
    written: bytes of the fp16 values copied to and from the engine, each counted once for a submission; border_read,
    border_written: the part of them from and to other segments. host_operations, host_bytes: of the segments that the
    CPU computes, without the loops counted in `open_loops`, whose number of steps depends on data."""

    kind: str
    submissions: int
    read: int
    written: int
    border_read: int
    border_written: int
    host_operations: int
    host_bytes: int
    layers: tuple[LayerDemand, ...]
    open_loops: int = 0


def demand(program: Program) -> Demand:
    """The work of a chip's program. Layers come in the order of `program.layers`."""
    layers = tuple(_of_layer(program, layer) for layer in program.layers)
    engine = [s for s in program.segments if s.device == "ane"]
    host = [s for s in program.segments if s.device == "host"]
    return Demand(
        program_kind([layer.kind for layer in layers]),
        len(engine),
        sum(port.type.bytes for s in engine for port in s.inputs),
        sum(port.type.bytes for s in engine for port in s.outputs),
        sum(port.type.bytes for s in engine for port in s.crossings),
        sum(port.type.bytes for s in engine for port in s.outputs if port.readers),
        sum(s.work.operations for s in host),
        sum(s.work.bytes for s in host),
        layers,
        sum(step.kernel == "loop" for step in program.steps),
    )


def program_kind(kinds: Sequence[Kind]) -> str:
    """The kind of a program, which decides its spread of measured times. "attention" is attention with its products and
    sums but without other layers, as in the measurements; "network" is any other program of several kinds."""
    computing = set(kinds) - {"move"}
    if "attention" in computing and not computing & set(OUTSIDE_ATTENTION):
        return "attention"
    return computing.pop() if len(computing) == 1 else "network" if computing else "move"


def _of_layer(program: Program, layer: Layer) -> LayerDemand:
    kind, second, products, constant = _kind(program, layer), 0, 1, True
    tensors = [program.tensors[t] for t in layer.reads]
    sizes = [-(-part * t.type.dtype.bits // 8) for part, t in zip(layer.parts, tensors, strict=True)]
    traffic = layer.loaded + layer.stored
    if kind in PRODUCTS:
        if layer.weights is not None:
            second = layer.weights.bytes
        elif len(tensors) > 1:
            second, constant = sum(sizes[1:]), False
            traffic = max(0, traffic - second)
            products = max(1, prod(tensors[1].type.shape[:-2]))
    data = sizes[0] // products if sizes else 0
    return LayerDemand(kind, layer.work.operations, second, data, traffic, constant)


def _kind(program: Program, layer: Layer) -> Kind:
    if layer.engine == "DMA":
        return "move"
    if layer.kind == "SDPA":
        return "attention"
    if layer.kind in _NORMS:
        return "norm"
    if layer.kind == "Softmax":
        return "softmax"
    if layer.kind == "Reduction":
        return "reduction"
    if layer.kind == "MatrixMult":
        return "gemm"
    if layer.engine == "NE" and layer.weights is not None:
        first, end = layer.steps
        for step in program.steps[first:end]:
            weight = step.node.inputs[1] if len(step.node.inputs) > 1 else None
            if "conv" in step.node.op and weight is not None and prod(weight.type.shape[2:]) > 1:
                return "conv"
        return "gemm"
    return "elementwise"
