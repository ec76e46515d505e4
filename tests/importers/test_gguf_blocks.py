"""Blocks of GGUF have the numbers that ggml gives them."""

import hashlib

import numpy as np
import pytest

from hexane.importers.gguf import KINDS, Kind

# What the package gguf 0.19 (in NumPy) makes of seeded blocks: every eighth block's number at 37 times its place, and the
# first half of the sha256 of all numbers in fp32.
RECORDED: dict[str, tuple[list[float], str]] = {
    "F32": (
        [
            -0.296853721,
            0.149591953,
            0.411622882,
            -0.263202965,
            -0.00392267061,
            -0.235824972,
            -0.195286915,
            -0.296238333,
        ],
        "38386359add7f8fa0bba351d32820ea8",
    ),
    "F16": (
        [0.109069824, -0.202148438, 0.215698242, 0.0485839844, -0.374511719, 0.475097656, 0.130004883, -0.1484375],
        "09f54caad6e1dc0b69dccd69c476e507",
    ),
    "Q4_0": (
        [
            0.00575351715,
            -0.0248336792,
            0.0245819092,
            0.0650024414,
            0.0143241882,
            0.126220703,
            -0.0361633301,
            0.152709961,
        ],
        "729993240752883ac2025a3cd97205dc",
    ),
    "Q4_1": (
        [
            0.0850219727,
            -0.0671081543,
            -0.249931335,
            0.0254249573,
            0.206279755,
            0.0779190063,
            0.134994507,
            0.00749099255,
        ],
        "f362b3508c3913496b910b999b01499c",
    ),
    "Q5_0": (
        [0.136230469, -0.390380859, 0.0249328613, 0.037197113, -0.0142936707, -0.224517822, 0.0140914917, -0.0],
        "b49d3e02b6da19ab8e6e619c3b6a0d35",
    ),
    "Q5_1": (
        [0.0225353241, 0.0146408081, -0.38494873, -1.18487549, -0.331100464, -0.287796021, 0.0604467392, 0.0293579102],
        "232e58a0504aa04cde204d33f656c4f6",
    ),
    "Q8_0": (
        [0.732788086, 2.87792969, -0.640926361, 0.367431641, 0.018371582, -0.109672546, -3.07226562, 1.76824951],
        "df012876d59563e17fba48ec5fbff3c2",
    ),
    "Q4_K": (
        [-11.7555237, -2.08383179, 4.10719299, 1.01342773, 13.4005737, 1.15969944, 0.004986763, 0.54095459],
        "2f8dd98bb26553bb68ece070bf600ec0",
    ),
    "Q5_K": (
        [4.5140686, 1.56829834, 14.9114914, 7.91638184, -8.57305908, 1.8727417, 0.397979736, -4.3341713],
        "8b8ae4a9ee466a7c51476982325fb052",
    ),
    "Q6_K": (
        [3.24682617, -12.1585693, -13.8908386, -1.22021484, -24.2457886, 51.0438538, -4.85358047, 0.585784912],
        "ed43087392a8f23587bae8cb91eb10e1",
    ),
    "BF16": (
        [
            1.14141585e-10,
            -1.44354999e-08,
            2.68919393e-08,
            1.63424829e-13,
            -1.89244747e-06,
            1.83582306e-05,
            6.14818418e-10,
            -1.39698386e-09,
        ],
        "9c6bc727056ce75a50e3e937383a2f4d",
    ),
}
# Where a block has numbers of fp16.
HALVES = {"Q6_K": (208,), **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2))}
HALVES |= dict.fromkeys(("Q4_0", "Q5_0", "Q8_0"), (0,))
COUNT = 64


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_numbers_are_those_of_ggml(kind: Kind) -> None:
    name, wide = kind.name, kind.bytes
    rng = np.random.default_rng(wide)
    raw = rng.integers(0, 256, (COUNT, wide), dtype=np.uint8)
    for at in HALVES.get(name, ()):
        raw[:, at : at + 2] = rng.normal(0, 0.02, (COUNT, 1)).astype("<f2").view(np.uint8)
    if name not in HALVES:
        raw = (
            rng.normal(0, 0.2, (COUNT, 1)).astype("<f4" if name == "F32" else "<f2").view(np.uint8).reshape(COUNT, wide)
        )
    got = kind.decode(raw)
    numbers, digest = RECORDED[name]
    assert [float(f"{got[i, i * 37 % got.shape[1]]:.9g}") for i in range(0, COUNT, 8)] == numbers
    assert hashlib.sha256(got.astype("<f4").tobytes()).hexdigest()[:32] == digest


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS.values() if kind.split is not None], ids=lambda kind: kind.name
)
def test_integers_and_scales_say_the_same_numbers(kind: Kind) -> None:
    raw = np.random.default_rng(1).integers(0, 256, (COUNT, kind.bytes), dtype=np.uint8)
    for at in HALVES[kind.name]:
        raw[:, at : at + 2] = np.array([0.0123], "<f2").view(np.uint8)
    assert kind.split is not None
    made = kind.split(raw)
    assert made.integers.dtype == np.int8
    wide = len(made.integers) // len(made.scales)
    got = made.integers * np.repeat(made.scales, wide)
    np.testing.assert_array_equal(got, kind.decode(raw).reshape(-1))
