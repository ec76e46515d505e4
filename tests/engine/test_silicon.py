"""What chips returned, one number per seeded case: the relative distance of their result to fp64's. Equal bits give equal distances.

Others measured the numbers with ANEForge's seeded cases: the linear ones on M1, M2 Max, M4 Max, M5 Pro and M6, which agree; convolutions
on M1, M2 Max and M4 Max, which compute them directly, and on M5 Pro and M6, which do by Winograd. docs/numerics.md has the table.
"""

import numpy as np
import pytest
from test_engine_products import engine_conv, engine_matmul

from engine_model import Array

LINEAR = {512: 0.00257800397023792, 1024: 0.005528352999597525, 2048: 0.012131920427695623}
CONV = {  # channels, batch, whether by Winograd
    (64, 8, False): 0.0003671660721200675,
    (128, 8, False): 0.00037520404231831836,
    (64, 16, False): 0.00036713452579315676,
    (128, 16, False): 0.000373510899298669,
    (64, 8, True): 0.0005162338465671137,
    (128, 8, True): 0.0005214500415248461,
    (64, 16, True): 0.0005134171098867606,
    (128, 16, True): 0.0005217801877804339,
}


def distance(got: Array, want: Array) -> float:
    return float(np.linalg.norm(got.astype(np.float64).ravel() - want.ravel()) / np.linalg.norm(want.ravel()))


@pytest.mark.parametrize("n", [512, 1024, pytest.param(2048, marks=pytest.mark.slow)])
def test_linear_returns_what_chips_returned(n: int) -> None:
    rng = np.random.default_rng(0)
    x, w = ((rng.standard_normal((n, n)).astype(np.float32) / np.float32(np.sqrt(n))) for _ in range(2))
    got = engine_matmul(x[:256].astype(np.float16), np.ascontiguousarray(w.T).astype(np.float16), constants=[1])
    assert distance(got, x[:256].astype(np.float64) @ w.astype(np.float64).T) == pytest.approx(LINEAR[n], rel=1e-12)


@pytest.mark.parametrize(
    ("channels", "batch", "winograd"),
    [case if case[:2] == (64, 8) else pytest.param(*case, marks=pytest.mark.slow) for case in CONV],
)
def test_convolution_returns_what_chips_returned(channels: int, batch: int, winograd: bool) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((batch, channels, 64, 64)).astype(np.float32)[0]
    w = rng.standard_normal((channels, channels, 3, 3)).astype(np.float32) * np.sqrt(2.0 / (channels * 9))
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1)))
    want = sum(
        np.tensordot(w[:, :, i, j].astype(np.float64), padded[:, i : i + 64, j : j + 64], 1)
        for i in range(3)
        for j in range(3)
    )
    image = np.ascontiguousarray(x.transpose(1, 2, 0)).astype(np.float16)[None]
    got = engine_conv(image, w.astype(np.float16), winograd=winograd, pads=[1, 1, 1, 1])[0].transpose(2, 0, 1)
    assert distance(got, np.asarray(want)) == pytest.approx(CONV[channels, batch, winograd], rel=1e-12)
