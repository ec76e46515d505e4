"""driver_models.py DIR: writes the plans of four small models in fp16, for the driver of the stand-in."""

import sys
from pathlib import Path

import numpy as np

import hexane as hx


def write_plans(folder: Path) -> list[Path]:
    rng = np.random.default_rng(0)
    image, rows = (hx.input(name, shape, dtype="fp16") for name, shape in (("image", (1, 4, 9, 7)), ("rows", (2, 33))))
    kernel, weight = (rng.standard_normal(shape).astype(np.float16) for shape in ((8, 4, 3, 3), (33, 20)))
    other = hx.input("b", (1, 4, 9, 7), dtype="fp16")
    models = {
        "conv": hx.relu(hx.conv(image, kernel, pad=1)),
        "linear": hx.softmax(rows @ weight),
        "two": {"z": image - other, "a": hx.reduce_max(image, axes=(3,), keep_dims=True)},
        "sum": image + image,
    }
    paths = []
    for name, outputs in models.items():
        paths.append(folder / f"{name}.hxp")
        hx.compile(outputs, threads=1).save(paths[-1])
    return paths


if __name__ == "__main__":
    print(*write_plans(Path(sys.argv[1])))
