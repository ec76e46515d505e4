"""GFLOP/s of the multiply-accumulate kernels on one core, best of many runs: `python benchmarks/kernels_gemm.py
[name]`."""

import sys
from typing import Any

import numpy as np

from hexane import _core
from hexane.graph import EpilogueSlot
from hexane.program.attrs import Strings, pack

SECONDS = 0.3
CONV = "strides:L dilations:L pads:L groups:i epilogue:E"
MATMUL = "transpose_x:i transpose_y:i epilogue:E"

# name, input (H, W, C), output channels, kernel, stride, groups
CONVS = [
    ("resnet stem 7x7/2", 224, 3, 64, 7, 2, 1),
    ("resnet 3x3 64@56", 56, 64, 64, 3, 1, 1),
    ("resnet 3x3 128@28", 28, 128, 128, 3, 1, 1),
    ("resnet 3x3 256@14", 14, 256, 256, 3, 1, 1),
    ("resnet 3x3 512@7", 7, 512, 512, 3, 1, 1),
    ("resnet 3x3/2 64-128@56", 56, 64, 128, 3, 2, 1),
    ("resnet 3x3/2 256-512@14", 14, 256, 512, 3, 2, 1),
    ("resnet 1x1/2 64-128@56", 56, 64, 128, 1, 2, 1),
    ("mobilenet 3x3/2 3-32@224", 224, 3, 32, 3, 2, 1),
    ("mobilenet 1x1 32-16@112", 112, 32, 16, 1, 1, 1),
    ("mobilenet 1x1 16-96@112", 112, 16, 96, 1, 1, 1),
    ("mobilenet 1x1 96-24@56", 56, 96, 24, 1, 1, 1),
    ("mobilenet 1x1 24-144@56", 56, 24, 144, 1, 1, 1),
    ("mobilenet 1x1 192-32@28", 28, 192, 32, 1, 1, 1),
    ("mobilenet 1x1 64-384@14", 14, 64, 384, 1, 1, 1),
    ("mobilenet 1x1 576-96@14", 14, 576, 96, 1, 1, 1),
    ("mobilenet 1x1 960-160@7", 7, 960, 160, 1, 1, 1),
    ("mobilenet 1x1 320-1280@7", 7, 320, 1280, 1, 1, 1),
    ("depthwise 3x3 96@112/2", 112, 96, 96, 3, 2, 96),
    ("depthwise 3x3 144@56", 56, 144, 144, 3, 1, 144),
    ("depthwise 3x3 384@14", 14, 384, 384, 3, 1, 384),
    ("depthwise 3x3 960@7", 7, 960, 960, 3, 1, 960),
]
# name, M, K, N, constant y
MATMULS = [
    ("matmul 128x384x1536", 128, 384, 1536, True),
    ("matmul 128x1536x384", 128, 1536, 384, True),
    ("matmul 256x768x2048", 256, 768, 2048, True),
    ("matmul 256x768x2048 computed", 256, 768, 2048, False),
    ("matmul 256x2048x768", 256, 2048, 768, True),
    ("matmul 256x2048x768 computed", 256, 2048, 768, False),
    ("matmul 197x192x192", 197, 192, 192, True),
    ("matmul 128x32x128 computed", 128, 32, 128, False),
    ("matmul 1x768x32000", 1, 768, 32000, True),
    ("matmul 1x768x2048", 1, 768, 2048, True),
    ("matmul 1x64x256 computed", 1, 64, 256, False),
]


def best(name: str, layout: str, attrs: dict[str, Any], inputs: list[Any], out: Any, constants: list[int]) -> float:
    strings = Strings()
    packed = pack(layout, attrs, strings)
    text = strings.tobytes()

    def seconds(repeats: int) -> list[float]:
        return _core.run_kernel(name, inputs, [out], packed, text, constants, repeats=repeats)

    return min(seconds(int(SECONDS / max(min(seconds(3)), 1e-7)) + 3))


def report(name: str, dtype: str, flops: float, moved: float, seconds: float) -> None:
    print(
        f"{name:28} {dtype:8} {seconds * 1e6:10.1f} us {flops / seconds / 1e9:8.1f} GFLOP/s"
        f" {moved / seconds / 1e9:7.1f} GB/s"
    )


def main() -> None:
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    rng = np.random.default_rng(0)
    for dtype in ("float32", "float16"):
        for name, size, c, o, kernel, stride, groups in CONVS:
            if wanted not in name:
                continue
            extent = (size - 1) // stride + 1
            x = rng.standard_normal((1, size, size, c)).astype(dtype)
            w = rng.standard_normal((o, c // groups, kernel, kernel)).astype(dtype)
            out, bias = np.zeros((1, extent, extent, o), dtype), np.zeros(o, dtype)
            pad = [kernel // 2, (extent - 1) * stride + kernel - size - kernel // 2]
            attrs = {
                "strides": [stride] * 2,
                "dilations": [1, 1],
                "pads": [max(p, 0) for p in pad] * 2,
                "groups": groups,
                "epilogue": [EpilogueSlot("relu")],
            }
            seconds = best("conv", CONV, attrs, [x, w, bias], out, [1, 2])
            report(name, dtype, 2 * out.size * kernel * kernel * c / groups, x.nbytes + w.nbytes + out.nbytes, seconds)
        for name, m, k, n, constant in MATMULS:
            if wanted not in name:
                continue
            x, y = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
            out, bias = np.zeros((m, n), dtype), np.zeros(n, dtype)
            attrs = {"transpose_x": 0, "transpose_y": 0, "epilogue": []}
            seconds = best("matmul", MATMUL, attrs, [x, y, bias], out, [1, 2] if constant else [])
            report(name, dtype, 2 * m * k * n, x.nbytes + y.nbytes + out.nbytes, seconds)


if __name__ == "__main__":
    main()
