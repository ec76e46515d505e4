"""Runs one kernel on NumPy arrays, whole and cut into pieces along each axis it can be cut along."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hexane import _core
from hexane.graph import EpilogueSlot
from hexane.program.attrs import Strings, pack

Array = NDArray[Any]


def run(
    name: str, inputs: Sequence[Array | None], outputs: Sequence[Array], attrs: Mapping[str, Any], **cut: Any
) -> None:
    """Fills the outputs; cut is pieces=, which=, family=."""
    strings = Strings()
    packed = pack(layouts()[name], with_slots(attrs), strings)
    _core.run_kernel(name, list(inputs), list(outputs), packed, strings.tobytes(), **cut)


@cache
def layouts() -> dict[str, str]:
    """How the attributes of each kernel are packed. _core.kernels() takes 2 ms."""
    return {kernel["name"]: kernel["attrs"] for kernel in _core.kernels()}


def with_slots(attrs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The attributes, with an epilogue of (op, alpha, beta, operand) as slots."""
    if "epilogue" not in attrs:
        return attrs
    slots = [
        slot
        if isinstance(slot, EpilogueSlot)
        else EpilogueSlot(slot[0], (("alpha", slot[1]), ("beta", slot[2])), None if slot[3] < 0 else slot[3])
        for slot in attrs["epilogue"]
    ]
    return {**attrs, "epilogue": slots}


def same_bits(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def run_every_cut(name: str, inputs: Sequence[Array | None], outputs: Sequence[Array], **attrs: Any) -> None:
    """Fills the outputs, and asserts that 3 and 7 pieces along every axis give the same bits."""
    run(name, inputs, outputs, attrs)
    for which in range(outputs[0].ndim):
        for pieces in (3, 7):
            again = [poisoned_like(out) for out in outputs]
            run(name, inputs, again, attrs, pieces=pieces, which=which)
            for out, other in zip(outputs, again, strict=True):
                assert same_bits(out, other), f"{name}: {pieces} pieces of cut {which} differ from the whole"


def poisoned(shape: Sequence[int], dtype: Any) -> Array:
    """A dense array whose bytes are all 0xA5, so that what a kernel leaves out shows."""
    count = int(np.prod(shape))
    return np.full(count * np.dtype(dtype).itemsize, 0xA5, np.uint8).view(dtype).reshape(shape)


def poisoned_like(array: Array) -> Array:
    """The same with the shape, dtype and strides of `array`."""
    span = sum((n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)) + array.itemsize
    return np.ndarray(array.shape, array.dtype, np.full(span if array.size else 0, 0xA5, np.uint8), 0, array.strides)


def integers(shape: tuple[int, ...], dtype: str, seed: int = 11) -> Array:
    """Half of them small; the least and the largest first."""
    print("seed", seed)
    limits = np.iinfo(dtype)
    values = np.random.default_rng(seed).integers(limits.min, limits.max, shape, dtype, endpoint=True)
    small = np.random.default_rng(seed + 1).integers(max(limits.min, -4), 5, shape).astype(dtype)
    values = np.where(np.random.default_rng(seed + 2).random(shape) < 0.5, values, small).astype(dtype)
    values.ravel()[:2] = limits.min, limits.max
    return values
