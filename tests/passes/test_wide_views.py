"""Ops of views that are wider than a chip takes are ops of the images, on chips."""

from collections.abc import Callable

import numpy as np
import pytest

import hexane as hx
from hexane.build import graph
from hexane.passes.repair import repair
from hexane.targets import load_target

Build = Callable[[hx.Tensor], hx.Tensor]
SHAPE = (2, 6, 160, 120)
RNG = np.random.default_rng(11)
ROW, COLUMN = RNG.normal(size=(6, 1)).astype(np.float32), RNG.normal(size=6).astype(np.float32)


def flat(x: hx.Tensor) -> hx.Tensor:
    return hx.reshape(x, shape=(2, 6, -1))


def tokens(x: hx.Tensor) -> hx.Tensor:
    return hx.transpose(flat(x), perm=(0, 2, 1))


def image(x: hx.Tensor) -> hx.Tensor:
    return hx.reshape(x, shape=SHAPE)


def attended(x: hx.Tensor) -> hx.Tensor:
    """Squeeze and excitation on rows."""
    return image(flat(x) * hx.sigmoid(hx.reduce_mean(flat(x), axes=(2,), keep_dims=True) * ROW))


BUILDS: dict[str, Build] = {
    "mean": lambda x: hx.reduce_mean(flat(x), axes=(2,)),
    "mean without its axis": lambda x: hx.reduce_mean(flat(x), axes=(-1,), keep_dims=False),
    "largest of all": lambda x: hx.reduce_max(hx.reshape(x, shape=(-1,))),
    "mean of squares": lambda x: hx.reduce_mean(hx.square(flat(x) - 1.0), axes=(2,)),
    "length": lambda x: hx.reduce_l2_norm(hx.reshape(x, shape=(12, -1)), axes=(1,)),
    "attention to channels": attended,
    "two views": lambda x: image(hx.maximum(flat(x), flat(x * 0.5)) + ROW),
    "an axis of extent 1": lambda x: hx.reduce_sum(hx.reshape(x, shape=(2, 6, 1, -1)) * 0.01, axes=(2, 3)),
    "l2 norm": lambda x: image(hx.l2_norm(flat(x), axes=(2,))),
    "tokens": lambda x: hx.reduce_mean(tokens(x), axes=(1,)),
    "norm of tokens": lambda x: image(hx.transpose(hx.layer_norm(tokens(x), COLUMN, COLUMN), perm=(0, 2, 1))),
    "rms norm of tokens": lambda x: image(hx.transpose(hx.rms_norm(tokens(x), COLUMN) * COLUMN, perm=(0, 2, 1))),
    "scaled rows": lambda x: image(hx.relu(flat(x) * ROW.reshape(1, 6, 1))),
}


@pytest.mark.parametrize("name", BUILDS)
def test_no_wide_view_is_left(name: str) -> None:
    """M1 runs each in one part, M4 as before: its rows end at 65536."""
    model = graph(BUILDS[name](hx.relu(hx.input("x", SHAPE))))
    made = repair(model, load_target("h13"))
    assert any(extent > 16384 for node in model.nodes for t in node.types for extent in t.shape)
    assert all(extent <= 16384 for node in made.nodes for t in node.types for extent in t.shape)
    x = RNG.normal(size=SHAPE).astype(np.float32)
    np.testing.assert_allclose(hx.compile(made)(x), hx.compile(model)(x), rtol=1e-5, atol=1e-5)
    for chip in ("h13", "h16g"):
        report = hx.preflight(model, chip)
        assert report.ok, chip
        assert [found.device for found in report.segments] == ["ane"], chip
    assert repair(made, load_target("h13")).nodes == made.nodes


def halves(x: hx.Tensor) -> hx.Tensor:
    """Rows of the view are parts of the image's rows."""
    return hx.reduce_sum(hx.reshape(x, shape=(2, 4, -1, 3)), axes=(3,))


def numbers_of_pixels(x: hx.Tensor) -> hx.Tensor:
    return flat(x) * RNG.normal(size=160 * 120).astype(np.float32)


def more_rows(x: hx.Tensor) -> hx.Tensor:
    return hx.reshape(flat(x), shape=(2, 1, 6, -1)) * RNG.normal(size=(1, 3, 1, 1)).astype(np.float32)


def both_axes(x: hx.Tensor) -> hx.Tensor:
    gamma = RNG.normal(size=(6, 160 * 120)).astype(np.float32)
    return hx.layer_norm(flat(x), gamma, axes=(1, 2))


def parts_of_columns(x: hx.Tensor) -> hx.Tensor:
    return hx.transpose(hx.reshape(x, shape=(2, 3, -1)), perm=(0, 2, 1))


@pytest.mark.parametrize("build", [halves, numbers_of_pixels, more_rows, both_axes, parts_of_columns])
def test_views_of_other_blocks_keep_their_meaning(build: Build) -> None:
    model = graph(build(hx.input("x", SHAPE)))
    x = RNG.normal(size=SHAPE).astype(np.float32)
    for chip in ("h13", "h17s"):
        made = repair(model, load_target(chip))
        np.testing.assert_allclose(hx.compile(made)(x), hx.compile(model)(x), rtol=1e-4, atol=1e-4)


def test_views_that_every_chip_takes_stay() -> None:
    x = hx.input("x", (1, 8, 32, 32))
    model = graph(hx.reduce_mean(hx.relu(hx.reshape(x, shape=(1, 8, -1))), axes=(2,)))
    assert repair(model, load_target("h13")).nodes == model.nodes


def test_what_repair_and_numbers_say_holds_on_chips() -> None:
    """Next to fp64, in both arithmetics."""
    x = RNG.normal(20, 60, SHAPE).astype(np.float16)
    rows = x.astype(np.float64).reshape(2, 6, -1)
    want = np.sqrt((rows**2).mean(-1))
    v = hx.input("x", SHAPE, "fp16")
    y = hx.sqrt(hx.reduce_mean(hx.square(flat(v)), axes=(2,), keep_dims=False))
    for chip in ("h13", "h17s"):
        for numerics in ("engine", "ieee"):
            np.testing.assert_allclose(hx.compile(y, target=chip, numerics=numerics)(x), want, rtol=4e-3)
