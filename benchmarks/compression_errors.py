"""Errors of the encodings of weights, on seeded weights: `python benchmarks/compression_errors.py`.
docs/compression/measured.md has the figures.

    tables     palettes of groups whose tables are fp16 and int8
    vectors    palettes of vectors next to palettes of numbers of as many bits
    sparse     pruned weights with a palette next to either alone
    scales     scales of blocks fitted to activations, and to the weights alone
"""

import argparse
import time
import warnings
from collections.abc import Callable, Iterator

import numpy as np

import hexane as hx
from hexane.compression import compress, find_weights
from hexane.compression.encode import stored_bytes
from hexane.graph import Array, Graph
from hexane.ops.encodings import encoding_of
from hexane.targets import load_target

THREADS, CALIBRATED, JUDGED = 2, 8, 100
SAMPLES: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "Laplace": lambda rng, shape: rng.laplace(size=shape),
    "Student-t, 3 degrees": lambda rng, shape: rng.standard_t(3, shape),
    "uniform": lambda rng, shape: rng.uniform(-1, 1, shape),
}


def weights(kind: str, *shape: int) -> Array:
    return (SAMPLES[kind](np.random.default_rng(0), shape) * 0.02).astype(np.float16).astype(np.float32)


def stored(weight: Array, mode: str) -> tuple[int, float, float]:
    """The bytes of an encoded weight (out, in) or filter, its squared error, and the seconds to encode it."""
    x = hx.input("x", (1, weight.shape[1], 8, 8) if weight.ndim == 4 else (1, weight.shape[1]))
    graph = hx.graph(hx.conv(x, weight) if weight.ndim == 4 else hx.linear(x, weight))
    begin = time.process_time()
    made = compress(graph, hx.Compression(mode), load_target("host"), THREADS)
    seconds = time.process_time() - begin
    value = made.outputs[0].value.node.inputs[1]
    assert value is not None
    numbers = value.node.data if value.node.op == "const" else encoding_of(value).decode().node.data
    assert numbers is not None
    error = float(np.sum((numbers.astype(np.float64) - weight) ** 2))
    (before,) = find_weights(graph)
    return stored_bytes(before, mode, value), error, seconds


def tables() -> Iterator[str]:
    yield "512 x 1152 weights: |w - w'| / |w| with tables of fp16 and of int8, ratio, bytes"
    for kind in list(SAMPLES)[:3]:
        weight = weights(kind, 512, 1152)
        size = float(np.sum(weight.astype(np.float64) ** 2))
        for mode in ("palette4", "palette4:g16", "palette4:g8", "palette6:g16", "palette6:g8", "palette8:g16"):
            (halves, first, _), (bytes_, second, _) = (stored(weight, m) for m in (mode, f"{mode}:int8"))
            errors = [(e / size) ** 0.5 for e in (first, second)]
            yield f"{kind:21} {mode:13} {errors[0]:.5f} {errors[1]:.5f} {errors[1] / errors[0]:7.4f} {halves:8} {bytes_:8}"


def vectors() -> Iterator[str]:
    yield "400,000 weights: squared errors of vectors, as parts of those of numbers of as many bits; processor time of both, ms"
    for kind in SAMPLES:
        weight = weights(kind, 800, 500)
        for mode, alone in (("palette4:v2", "palette2"), ("palette8:v2", "palette4"), ("palette8:v4", "palette2")):
            (_, first, ours), (_, second, theirs) = (stored(weight, m) for m in (mode, alone))
            yield f"{kind:21} {mode} {alone} {first / second:.2f} {ours * 1e3:6.0f} {theirs * 1e3:6.0f}"


def sparse() -> Iterator[str]:
    yield "a 3x3 convolution of 512 channels: bytes, |w - w'| / |w|"
    weight = weights("normal", 512, 512, 3, 3)
    size = float(np.sum(weight.astype(np.float64) ** 2))
    for mode in ("palette4", "sparse:0.5", "sparse:0.5+palette4", "sparse:0.7+palette4"):
        count, error, _ = stored(weight, mode)
        yield f"{mode:20} {count:8} {(error / size) ** 0.5:.3f}"


# ---- scales for activations ----


def layer(kind: str, seed: int) -> Graph:
    rng = np.random.default_rng(seed)

    def weight(*shape: int) -> Array:
        return (rng.standard_normal(shape) * np.prod(shape[1:]) ** -0.5).astype(np.float32)

    if kind == "linear":
        return hx.graph(hx.linear(hx.input("x", (16, 256)), weight(128, 256)))
    x = hx.input("x", (1, 64, 12, 12))
    if kind == "conv":
        return hx.graph(hx.conv(x, weight(64, 64, 3, 3), pad=1))
    y = hx.relu(hx.conv(hx.relu(hx.conv(x, weight(64, 64, 3, 3), strides=2, pad=1)), weight(64, 64, 3, 3), pad=1))
    if kind == "with a mean":
        return hx.graph(hx.linear(hx.reduce_mean(y, axes=(2, 3), keep_dims=False), weight(128, 64)))
    return hx.graph(hx.linear(hx.reshape(y, shape=(1, 2304)), weight(128, 2304)))


def feeds(graph: Graph, seed: int, count: int, outliers: bool) -> list[dict[str, Array]]:
    """With outliers, one channel in each block of sixteen has inputs 100 times as large; its index differs between
    blocks."""
    rng, shape = np.random.default_rng(seed), graph.inputs[0].shape
    sizes = np.ones(shape[1])
    if outliers:
        sizes[[16 * k + (5 * k + 5) % 16 for k in range(shape[1] // 16)]] = 100
    sizes = sizes.reshape(-1, *[1] * (len(shape) - 2))
    return [{"x": (rng.standard_normal(shape) * sizes).astype(np.float32)} for _ in range(count)]


def errors(kind: str, seed: int, outliers: bool) -> tuple[float, float]:
    """The output's relative error with scales from the weights alone, and with scales fitted to other inputs."""
    graph = layer(kind, seed)
    known, judged = (feeds(graph, seed + n, count, outliers) for n, count in ((1000, CALIBRATED), (2000, JUDGED)))
    asked = (hx.Compression("blockwise4:b32", calibration=c) for c in (None, known))
    nets = [hx.compile(graph), *(hx.compile(graph, compress=c) for c in asked)]
    want, *got = ([net(**feed).astype(np.float64) for feed in judged] for net in nets)
    size = sum(float(np.sum(y**2)) for y in want)
    lost = (sum(float(np.sum((a - b) ** 2)) for a, b in zip(y, want, strict=True)) for y in got)
    first, second = ((part / size) ** 0.5 for part in lost)
    return first, second


def scales() -> Iterator[str]:
    yield f"blockwise4:b32, error of the outputs on {JUDGED} inputs: scales of the weights, fitted to {CALIBRATED} others"
    rows = (
        ("linear", True, 4),
        ("conv", True, 4),
        ("linear", False, 4),
        ("conv", False, 4),
        ("with a mean", False, 12),
        ("without it", False, 12),
    )
    for kind, outliers, networks in rows:
        found = np.mean([errors(kind, seed, outliers) for seed in range(networks)], axis=0)
        yield f"{kind:12} {'1 of 16 larger' if outliers else 'of one size':15} {found[0]:.3f} {found[1]:.3f}"


PARTS = {"tables": tables, "vectors": vectors, "sparse": sparse, "scales": scales}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=list(PARTS))
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in PARTS if asked.part is None else [asked.part]:
        for line in PARTS[name]():
            print(line, flush=True)
        print()


if __name__ == "__main__":
    main()
