"""models.py DIR: writes the plans of four small models with states and params, for the driver of contexts."""

import sys
from pathlib import Path

import numpy as np

import hexane as hx


def graphs() -> dict[str, hx.Graph]:
    rng = np.random.default_rng(0)
    x, image = hx.input("x", (1, 32)), hx.input("image", (1, 8, 24, 24))
    params = {name: hx.param(name, rng.normal(0, 0.3, (32, 32)).astype(np.float32)) for name in ("key", "value", "w")}
    kernel = hx.param("kernel", rng.normal(0, 0.3, (16, 8, 3, 3)).astype(np.float32))

    # Attention over a cache, of which each call writes the next row.
    count = hx.state("count", (1,), "int32")
    keys = hx.write_state(hx.state("keys", (16, 32)), x @ params["key"], count, axis=0)
    values = hx.write_state(hx.state("values", (16, 32)), x @ params["value"], count, axis=0)
    attention = hx.softmax(x @ hx.transpose(keys, perm=(1, 0))) @ values
    counted = hx.write_state(count, count + np.int32(1), np.int32(0))

    memory = hx.state("memory", (1, 32))
    cell = hx.write_state(memory, hx.tanh((memory + x) @ params["w"]), np.int32(0))
    last = hx.state("last", (1, 8, 24, 24))
    before = hx.conv(last, kernel, pad=1)
    constant = hx.state("constant", init=rng.normal(0, 0.3, (32, 48)).astype(np.float32))
    return {
        "attention": hx.graph({"y": attention}, updates=[counted]),
        "cell": hx.graph({"y": cell}),
        "frames": hx.graph({"y": hx.relu(before)}, updates=[hx.write_state(last, image, np.int32(0))]),
        "constant": hx.graph({"y": x @ constant}),
    }


def write_plans(folder: Path) -> list[Path]:
    paths = []
    for name, graph in graphs().items():
        paths.append(folder / f"context_{name}.hxp")
        hx.compile(graph, threads=2).save(paths[-1])
    return paths


if __name__ == "__main__":
    print(*write_plans(Path(sys.argv[1])))
