"""Programs that keep only the packed form of their weights."""

from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from hexane import _core
from hexane.runtime.compile import build_with_shared_weights

OPTIONS = hx.Options(target="host", threads=1)
RNG = np.random.default_rng(5)
CODES = RNG.integers(-127, 128, (256, 320), np.int8)
SCALES = RNG.uniform(0.01, 0.02, (256, 10)).astype(np.float32)
X = RNG.normal(size=(3, 320)).astype(np.float32)


def product(codes: np.ndarray) -> tuple[hx.Tensor, hx.Tensor]:
    """Returns the weight, and a product by it."""
    weight = hx.decode_blocks(hx.const(codes), hx.const(SCALES))
    return weight, hx.linear(hx.input("x", (3, 320)), weight)


def test_a_packed_weight_is_not_kept(tmp_path: Path) -> None:
    pool = _core.MemoryPool()
    codes = pool.keep(CODES)
    graph = hx.graph({"y": product(codes)[1]})
    want = hx.compile(graph, OPTIONS)(x=X)
    kept = build_with_shared_weights(OPTIONS, pool)(graph)
    assert pool.is_shared(codes)
    del kept
    assert not pool.is_shared(codes)
    net = build_with_shared_weights(OPTIONS, pool, packed_only=True)(graph)
    assert not pool.is_shared(codes)
    np.testing.assert_array_equal(net(x=X), want)
    np.testing.assert_array_equal(net.context()(x=X), want)
    with pytest.raises(hx.Error, match="got a program with packed weights only, need one that keeps its weights"):
        net.save(tmp_path / "net.plan")
    assert not list(tmp_path.iterdir())


def test_a_weight_that_a_step_reads_in_place_is_kept() -> None:
    pool = _core.MemoryPool()
    codes = pool.keep(CODES)
    weight, y = product(codes)
    graph = hx.graph({"y": y, "rows": hx.gather(weight, hx.input("ids", (2,), "int32"))})
    ids = np.array([200, 3], np.int32)
    net = build_with_shared_weights(OPTIONS, pool, packed_only=True)(graph)
    assert pool.is_shared(codes)
    for got, want in zip(net(x=X, ids=ids).values(), hx.compile(graph, OPTIONS)(x=X, ids=ids).values(), strict=True):
        np.testing.assert_array_equal(got, want)


def test_the_bytes_of_a_mapped_file_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(range(100)))
    with (tmp_path / "file").open("rb") as file:
        mapping = _core.FileMapping.map(file.fileno(), "[test] file")
    assert mapping is not None
    assert mapping.read(10, 20) == bytes(range(10, 30))
    assert mapping.read(100, 0) == b""
    for begin, size in ((90, 11), (101, 0), (1 << 63, 1 << 63)):
        with pytest.raises(hx.Error, match="need a part of the file's 100"):
            mapping.read(begin, size)
    (tmp_path / "file").write_bytes(b"short")
    with pytest.raises(hx.Error, match="got a file that became shorter, need its 100 bytes"):
        mapping.read(10, 20)
