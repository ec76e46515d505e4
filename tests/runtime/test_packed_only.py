"""Programs that keep only the packed form of their weights."""

from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from hexane import _core
from hexane.runtime.compile_graphs import build_with_shared_weights

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


def lookup(codes: np.ndarray, rows: int, ids: np.ndarray, *, with_product: bool) -> hx.Graph:
    """Returns the graph of a table's rows; with a product by the table, too."""
    table = hx.decode_blocks(hx.const(codes), hx.const(SCALES[:rows]))
    outputs = {"rows": hx.gather(table, hx.input("ids", ids.shape, "int32"))}
    if with_product:
        outputs["y"] = hx.linear(hx.input("x", (3, 320)), table)
    return hx.graph(outputs)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("rows", [256, 250])
@pytest.mark.parametrize("ids", [np.array([200, 3, -1, 3]), np.array([[0, 249], [16, 15], [-250, 17]])])
def test_rows_of_a_packed_table_are_read_from_its_panels(ids: np.ndarray, rows: int, threads: int) -> None:
    pool = _core.MemoryPool()
    codes, ids = pool.keep(CODES[:rows]), ids.astype(np.int32)
    graph = lookup(codes, rows, ids, with_product=True)
    want = hx.compile(graph, OPTIONS)(x=X, ids=ids)
    net = build_with_shared_weights(hx.Options(target="host", threads=threads), pool, packed_only=True)(graph)
    assert not pool.is_shared(codes)
    for caller in (net, net.context()):
        for got, expected in zip(caller(x=X, ids=ids).values(), want.values(), strict=True):
            np.testing.assert_array_equal(got, expected)
    with pytest.raises(hx.Error, match=f"index: got {rows}, need -{rows} to {rows - 1}"):
        net(x=X, ids=np.full_like(ids, rows))


def test_a_weight_that_a_step_reads_in_place_is_kept() -> None:
    pool = _core.MemoryPool()
    codes, ids = pool.keep(CODES), np.array([200, 3], np.int32)
    graph = lookup(codes, 256, ids, with_product=False)
    net = build_with_shared_weights(OPTIONS, pool, packed_only=True)(graph)
    assert pool.is_shared(codes)
    np.testing.assert_array_equal(net(ids=ids), hx.compile(graph, OPTIONS)(ids=ids))


def test_rows_of_a_table_in_4_bits_are_kept() -> None:
    """A product packs two integers in a byte, so that its panels have no rows of bytes."""
    pool = _core.MemoryPool()
    codes, ids = pool.keep(CODES % 8), np.array([200, 3], np.int32)
    graph = lookup(codes, 256, ids, with_product=True)
    want = hx.compile(graph, OPTIONS)(x=X, ids=ids)
    net = build_with_shared_weights(OPTIONS, pool, packed_only=True)(graph)
    assert pool.is_shared(codes)
    for got, expected in zip(net(x=X, ids=ids).values(), want.values(), strict=True):
        np.testing.assert_array_equal(got, expected)


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
