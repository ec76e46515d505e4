"""Checksums of what kernels return in the engine's arithmetic, by the models alone: tests/cpp/test_engine.cpp computes
the same on every instruction set, also where there is no Python (arm64 under qemu).

Operands are made of a hash of their place, so that both sides have the same ones without a file.
"""

from collections.abc import Callable, Iterator

import numpy as np
from test_engine_products import conv

import engine_planar as planar
from engine_model import Array, matmul, winograd

KINDS = {  # kept bits of the hash, first exponent, how many
    "any": (0xFFFF, 0, 0),
    "network": (0x83FF, 10, 6),
    "tiny": (0x83FF, 0, 10),
    "ties": (0x83E0, 2, 7),
    "large": (0x83FF, 17, 6),
    "overflow": (0x83FF, 20, 5),
    "cancel": (0x83FF, 12, 8),
}


def mixed(x: Array) -> Array:
    """The finaliser of splitmix64."""
    with np.errstate(over="ignore"):
        x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ x >> np.uint64(31))


def halves(kind: str, operand: int, *shape: int) -> Array:
    keep, first, count = KINDS[kind]
    place = np.arange(np.prod(shape), dtype=np.uint64)
    sign = np.uint64(0)
    if kind == "cancel":  # each odd number is the one before it with the other sign
        place, sign = place & ~np.uint64(1), (place & np.uint64(1)) << np.uint64(15)
    hashed = mixed(place + np.uint64((operand + 1) << 32))
    bits = hashed & np.uint64(keep)
    if count:
        bits |= (np.uint64(first) + (hashed >> np.uint64(16)) % np.uint64(count)) << np.uint64(10)
    return (bits ^ sign).astype(np.uint16).view(np.float16).reshape(shape)


def checksum(y: Array) -> int:
    bits = np.ascontiguousarray(y).view(np.uint16).ravel().astype(np.uint64)
    place = np.arange(1, bits.size + 1, dtype=np.uint64) << np.uint64(16)
    return int(mixed(place | bits).sum(dtype=np.uint64))


def image_product(name: str, x: Array, w: Array, bias: Array) -> Array:
    match name:
        case "conv":
            return conv(x, w, bias, 1, pads=[1, 1, 1, 1])
        case "conv by pairs":
            return winograd(x, w, bias, 1)
        case "depthwise":
            return conv(x, w, bias, x.shape[3], pads=[1, 1, 1, 1])
        case "depthwise by pairs":
            return winograd(x, w, bias, x.shape[3])
        case _:
            return conv(x, w, bias, x.shape[3], pads=[1, 1, 1, 1], strides=[2, 2])


LINES: dict[str, Callable[[Array], Array]] = {
    "softmax": planar.softmax,
    "reduce_sum": lambda x: planar.reduced("reduce_sum", x),
    "reduce_mean": lambda x: planar.reduced("reduce_mean", x),
    "layer_norm": lambda x: planar.norm(x, halves("network", 1, 47), halves("network", 2, 47), 1e-3, True),
}
UNARY = [name for name in planar.FROM_TABLES if name != "gelu_tanh"] + ["abs", "square", "relu6", "hard_swish"]
BINARY = ["add", "sub", "mul", "real_div", "floor_div", "maximum"]


def results() -> Iterator[tuple[str, Array]]:
    for kind in KINDS:
        for other in KINDS:
            x, y, bias = halves(kind, 0, 5, 54), halves(other, 1, 54, 21), halves(other, 2, 21)
            yield f"matmul {kind} {other}", matmul(x, y, bias)
    for name in ("conv", "conv by pairs", "depthwise", "depthwise by pairs", "depthwise of stride 2"):
        for kind, other in (("network", "network"), ("network", "tiny"), ("tiny", "ties"), ("large", "network")):
            w = halves(other, 1, 18, 18 if name.startswith("conv") else 1, 3, 3)
            product = image_product(name, halves(kind, 0, 1, 4, 9, 18), w, halves(other, 2, 18))
            yield f"{name} {kind} {other}", product
    for name in UNARY:
        yield name, planar.unary(name, planar.EVERY)
    for name in BINARY:
        for kind in ("any", "network", "ties"):
            yield f"{name} {kind}", planar.binary(name, halves(kind, 0, 3001), halves(kind, 1, 3001))
    for name, function in LINES.items():
        for kind in ("network", "ties"):
            yield f"{name} {kind}", function(halves(kind, 0, 5, 47))


def test_checksums_of_the_engine_s_arithmetic(golden: Callable[[str, str], None]) -> None:
    lines = [f'{{"{name}", 0x{checksum(y):016x}}},' for name, y in results()]
    golden("arithmetic/checksums", "\n".join(lines) + "\n")


def test_the_tables_behind_them_are_those_of_the_chips(golden: Callable[[str, str], None]) -> None:
    words = np.frombuffer(planar.block("h13"), np.uint64)[1:]  # the first says whether Winograd's products are taken
    golden("arithmetic/tables", "".join(f"0x{word:016x},\n" for word in words))
