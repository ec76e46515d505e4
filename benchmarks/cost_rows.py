"""Graphs of the networks with published latencies on the engine: a row of a table names its network by `workload` and
`params`. Rows without a latency are left out; an unknown workload is an error."""

import csv
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import hexane as hx
from hexane.errors import Error
from hexane.graph import Graph

EPSILON = 1e-5


@dataclass(frozen=True)
class Row:
    """A measured latency. chip: the product, such as "M1 Max"."""

    machine: str
    chip: str
    workload: str
    params: str
    latency_us: float

    @property
    def network(self) -> str:
        return f"{self.workload} {self.params}".strip()


def read_rows(path: Path) -> list[Row]:
    rows = []
    with path.open(newline="") as file:
        for number, row in enumerate(csv.DictReader(file), start=2):
            if missing := {"machine", "workload", "params", "latency_ms"} - row.keys():
                raise Error(f"[{path}] got no column {', '.join(sorted(missing))}, need it")
            if not row["latency_ms"].strip():
                continue
            chip = re.match(r"(Apple )?(M\d+( Pro| Max| Ultra)?)\b", row["machine"])
            if chip is None:
                raise Error(
                    f"[{path}:{number}] machine: got {row['machine']!r}, need one that starts with a chip: M1 Max"
                )
            params = row["params"] if "=" in row["params"] else ""
            rows.append(Row(row["machine"], chip[2], row["workload"], params, float(row["latency_ms"]) * 1e3))
    return rows


def graph_of(workload: str, params: str) -> Graph:
    text = f"{workload};{params}"
    for start, build in NETWORKS.items():
        if workload.lower().startswith(start):
            return hx.graph(build(text), name=workload)
    raise Error(f"[{workload}] got a workload that is not known here, need one of {', '.join(NETWORKS)}")


def _number(text: str, name: str, default: int | None = None) -> int:
    found = re.search(rf"\b{name}=(\d+)", text)
    if found is None and default is None:
        raise Error(f"[{text}] got no {name}=, need a number")
    return default if found is None else int(found[1])  # type: ignore[return-value]


def _shape(text: str) -> tuple[int, ...]:
    found = re.search(r"shape=\[([\d, ]+)\]", text) or re.search(r"\(([\d, ]+)\)", text)
    if found is None:
        raise Error(f"[{text}] got no shape, need one as in shape=[256, 4096]")
    return tuple(map(int, found[1].split(",")))


def _weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, np.float32).astype(np.float16) / np.float16(16)


def _input(*shape: int) -> hx.Tensor:
    return hx.input("x", shape, "fp16")


def _gemm(text: str) -> hx.Tensor:
    n = _number(text, "N", 0)
    m, k = (_number(text, name, n) for name in "MK")
    batch = (_number(text, "B"),) if "B=" in text else ()
    return hx.matmul(_input(*batch, m, k), _weights(k, n))


def _conv(text: str) -> hx.Tensor:
    channels, kernel, batch = _number(text, "C"), _number(text, "k", 3), _number(text, "B", 1)
    extent = re.search(r"(\d+)x(\d+)", text)
    assert extent is not None
    x = _input(batch, channels, int(extent[1]), int(extent[2]))
    for i in range(depth := _number(text, "depth", 1)):
        x = hx.conv(x, _weights(channels, channels, kernel, kernel) * np.float16(1 + i / 64), pad=kernel // 2)
        x = hx.relu(x) if depth > 1 else x
    return x


def _attention(text: str) -> hx.Tensor:
    length, width, batch = _number(text, "S"), _number(text, "D", 768), _number(text, "B", 1)
    heads = _number(text, "H", width // 64)
    x = _input(batch, length, width)
    parts = [hx.matmul(x, _weights(width, width) * np.float16(1 + i / 8)) for i in range(3)]
    q, k, v = (
        hx.transpose(hx.reshape(p, shape=(batch, length, heads, width // heads)), perm=(0, 2, 1, 3)) for p in parts
    )
    scores = hx.mul(hx.matmul(q, k, transpose_y=True), np.float16((width // heads) ** -0.5))
    mixed = hx.matmul(hx.softmax(scores, axis=-1), v)
    joined = hx.reshape(hx.transpose(mixed, perm=(0, 2, 1, 3)), shape=(batch, length, width))
    return hx.matmul(joined, _weights(width, width) * np.float16(2))


def _norm(text: str) -> hx.Tensor:
    shape = _shape(text)
    ones = np.ones(shape[-1], np.float16)
    return hx.layer_norm(_input(*shape), ones, np.zeros_like(ones), axes=(-1,), epsilon=EPSILON)


def _rms(text: str) -> hx.Tensor:
    shape = _shape(text)
    return hx.rms_norm(_input(*shape), np.ones(shape[-1], np.float16), axes=(-1,), epsilon=EPSILON)


def _group_norm(text: str) -> hx.Tensor:
    shape = _shape(text)
    ones = np.ones(shape[1], np.float16)
    return hx.group_norm(_input(*shape), ones, np.zeros_like(ones), num_groups=32, epsilon=EPSILON)


def _jacobi(text: str) -> hx.Tensor:
    n = _number(text, "n")
    x, matrix = _input(n, 1), _weights(n, n)
    for _ in range(_number(text, "iters")):
        x = hx.add(hx.matmul(matrix, x), np.ones((n, 1), np.float16))
    return x


def _stencil(text: str) -> hx.Tensor:
    extent = re.search(r"(\d+)x(\d+)", text)
    assert extent is not None
    x = _input(1, 1, int(extent[1]), int(extent[2]))
    for i in range(_number(text, "steps")):
        x = hx.conv(x, _weights(1, 1, 3, 3) * np.float16(1 + i / 64), pad=1)
    return x


def _dft(text: str) -> hx.Tensor:
    n = _number(text, "N")
    return hx.concat(
        [hx.matmul(x := _input(1, n), _weights(n, n)), hx.matmul(x, _weights(n, n) * np.float16(2))], axis=0
    )


NETWORKS: dict[str, Callable[[str], hx.Tensor]] = {
    "gemm": _gemm,
    "conv": _conv,
    "streaming": lambda text: hx.relu(_input(*_shape(text))),
    "gelu": lambda text: hx.gelu(_input(*_shape(text))),
    "reduction": lambda text: hx.reduce_sum(_input(*_shape(text)), axes=(-1,), keep_dims=True),
    "softmax": lambda text: hx.softmax(_input(*_shape(text)), axis=-1),
    "layer_norm": _norm,
    "rms_norm": _rms,
    "group_norm": _group_norm,
    "attention": _attention,
    "dft": _dft,
    "jacobi": _jacobi,
    "stencil": _stencil,
}
