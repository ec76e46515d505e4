"""Caches of decoders: a program of the engine reads them as the last call left them, and the host writes last."""

import warnings
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.build import Tensor, graph
from hexane.graph import Graph
from hexane.ops.reference import run_reference
from hexane.passes.retarget import retarget
from hexane.passes.simplify.write_rows import write_rows
from hexane.pipeline import divide
from hexane.report.preflight import preflight
from hexane.runtime.functions import compile_functions
from hexane.targets import load_target
from hexane.train.decoder import LlamaConfig
from hexane.train.decoder.one_token import block, one_token

Array = np.ndarray[Any, Any]
CHIPS = ("h13", "h14", "h16g", "h17s")
SIZES: dict[str, Any] = {"vocab": 96, "dim": 64, "hidden": 96, "layers": 3, "heads": 4, "seq": 32}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"kv_heads": 2, "rope": "half"},
    "windows": {"kv_heads": 2, "window": 6, "local": (0, 2)},
    "learned positions": {
        "norm": "layer", "rope": "none", "positions": 32, "gated": False, "activation": "gelu", "qkv_bias": True,
        "out_bias": True, "mlp_bias": True,
    },
    "parallel": {"norm": "layer", "rope": "half", "rotary_dim": 8, "parallel": True, "gated": False},
    "normed heads": {"kv_heads": 1, "head_norm": True, "rope": "half"},
}  # fmt: skip
COUNT = 8
pytestmark = pytest.mark.filterwarnings("ignore::hexane.FallbackWarning")
ROTATED = pytest.mark.filterwarnings("ignore:.*last axis does not begin at 0:hexane.HazardWarning")  # halves of heads


def weights_of(config: LlamaConfig) -> dict[str, Array]:
    rng = np.random.default_rng(4)
    made = {}
    for name, shape in config.shapes().items():
        scaled = rng.standard_normal(shape) / np.sqrt(shape[-1])
        made[name] = (scaled if len(shape) > 1 else np.full(shape, "bias" not in name)).astype(np.float32)
    return made


def places(*at: int) -> Array:
    return np.array(at, np.int32)


def row(made: Any) -> Array:
    return np.asarray(made, np.float64).reshape(-1)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_decoder_with_a_cache_is_three_parts(family: str, chip: str) -> None:
    config = LlamaConfig(**(SIZES | FAMILIES[family]))
    weights = weights_of(config)
    windows = [block(config, weights, COUNT, window) for window in (config.seq, config.seq // 2)]
    for made in (one_token(config, weights), *windows):
        _, segments = divide(made, load_target(chip))
        assert [found.device for found in segments] == ["host", "ane", "host"]
        assert {node.op for node in segments[2].nodes} <= {"write_state", "reshape"}


@ROTATED
@pytest.mark.parametrize("numerics", ["ieee", "engine"])
@pytest.mark.parametrize("chip", ["h13", "h17s"])
@pytest.mark.parametrize("family", [*FAMILIES, "capped"])
def test_its_logits_are_those_of_the_host(family: str, chip: str, numerics: Any) -> None:
    own = FAMILIES.get(family, {"attention_cap": 50.0, "logit_cap": 30.0})
    config = LlamaConfig(**(SIZES | own))
    weights = weights_of(config)
    graphs = {"prefill": block(config, weights, COUNT, config.seq), "decode": one_token(config, weights)}
    ids = np.random.default_rng(5).integers(0, config.vocab, 24).astype(np.int32)
    by: dict[str, list[Array]] = {}
    for target in ("host", chip):
        net = compile_functions(graphs, target=target, numerics="ieee" if target == "host" else numerics)
        rows = [row(net["prefill"](tokens=ids[i : i + COUNT], position=places(i), last=places(6))) for i in (0, COUNT)]
        rows += [row(net["decode"](token=ids[i : i + 1], position=places(i))) for i in range(2 * COUNT, len(ids))]
        by[target] = rows
    for got, want in zip(by[chip], by["host"], strict=True):
        assert np.linalg.norm(got - want) <= 0.03 * np.linalg.norm(want)


# ---- attentions of all kinds ----


def cached(rng: np.random.Generator) -> tuple[Graph, dict[str, Array], str]:
    """An attention over a cache, with inputs: masks, views and numbers of rows by chance. Last the kind of mask."""
    heads, keys, depth = (int(rng.integers(1, high)) for high in (4, 24, 9))
    keys += 4
    count = int(rng.choice([1, 1, 2, 3]))
    position = hx.input("position", (1,) if rng.random() < 0.5 else (), "int32")
    query = hx.input("q", (heads, 2, depth))
    swapped, shared = rng.random() < 0.3, rng.random() < 0.4
    seen = int(rng.integers(1, keys + 1)) if rng.random() < 0.4 else keys  # the first rows: new ones may lie behind

    def side(name: str) -> Tensor:
        lead = 1 if shared else heads
        shape, axis = ((keys, lead, depth), 0) if swapped else ((lead, keys, depth), 1)
        contents = rng.standard_normal(shape).astype(np.float32)
        update = hx.input(f"new_{name}", tuple(count if i == axis else n for i, n in enumerate(shape)))
        whole = hx.write_state(hx.state(name, contents), update * 1.5, position, axis=axis)
        whole = hx.transpose(whole, perm=(1, 0, 2)) if swapped else whole
        whole = whole[:, :seen] if seen < keys else whole
        if shared and rng.random() < 0.5:
            return hx.tile(whole, reps=(heads, 1, 1))
        if shared and rng.random() < 0.5:
            return hx.broadcast_to(whole, shape=(heads, seen, depth))
        return hx.reshape(hx.reshape(whole, shape=(lead, 1, seen, depth)), shape=(lead, seen, depth))

    kind = str(rng.choice(["none", "bool", "float", "by place", "written out"]))
    mask: Tensor | None = None
    if kind == "bool":
        shown = rng.random((2, seen)) < 0.7
        shown[:, 0] = True
        mask = hx.const(shown)
    elif kind == "float":
        mask = hx.input("mask", (2, seen))
    elif kind in ("by place", "written out"):
        mask = hx.const(np.arange(seen, dtype=np.int32)) <= hx.reshape(position, shape=(1,)) + (count - 1)
    k, v = side("keys"), side("values")
    if kind == "written out":
        scores = hx.matmul(query, k, transpose_y=True) * 0.3
        y = hx.matmul(hx.softmax(hx.select(mask, scores, hx.const(np.float32(-1e30)))), v)  # type: ignore[arg-type]
    else:
        y = hx.scaled_dot_product_attention(query, k, v, mask)
    made = graph({"y": y, "z": hx.relu(y) + 1.0})
    feeds = {
        n: rng.standard_normal(v.shape).astype(np.float32) for n, v in zip(made.input_names(), made.inputs, strict=True)
    }
    at = int(rng.integers(0, keys - count + 1))
    return made, feeds | {"position": np.full_like(feeds["position"], at, np.int32)}, kind


@pytest.mark.parametrize("seed", range(90))
def test_an_attention_over_a_cache_keeps_its_numbers(seed: int) -> None:
    """In fp32, and so are the states after it."""
    made, feeds, kind = cached(np.random.default_rng(seed))
    written = retarget(made, load_target("h16g"))
    old, new = dict[str, Array](), dict[str, Array]()
    want, got = (run_reference(g, feeds, s) for g, s in ((made, old), (written, new)))
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=2e-5, atol=2e-5, err_msg=kind)
    assert old.keys() == new.keys() == {"keys", "values"}
    for name, contents in old.items():
        np.testing.assert_array_equal(new[name], contents)
    _, segments = divide(made, load_target("h16g"))
    # A float mask that callers give is limited on the engine, before several of its columns are chosen.
    assert len(segments) <= (3 if kind != "float" else 4), kind


# ---- rows that a model scatters ----

CACHE = (1, 3, 20, 8)  # batch, heads, positions, channels


def scattered(spelling: str, whole: Tensor, new: Tensor, index: Tensor, count: int) -> Tensor:
    """Rows of a cache as exporters of PyTorch write them; one row has an index of its own."""
    if spelling == "index_put":  # also of index_copy_
        lines = hx.scatter_nd(
            hx.transpose(hx.reshape(whole, shape=CACHE), perm=(2, 0, 1, 3)),
            hx.expand_dims(index, axes=(1,)),
            hx.transpose(new, perm=(2, 0, 1, 3)),
        )
        return hx.transpose(lines, perm=(1, 2, 0, 3))
    if spelling == "scatter":
        places = hx.broadcast_to(hx.reshape(index, shape=(1, 1, count, 1)), shape=new.shape)
        return hx.scatter_along_axis(whole, places, new, axis=2)
    lines = hx.transpose(hx.reshape(whole, shape=CACHE[1:]), perm=(1, 0, 2))
    rows = hx.transpose(hx.reshape(new, shape=(CACHE[1], count, CACHE[3])), perm=(1, 0, 2))
    made = hx.scatter_nd(lines, hx.reshape(index, shape=(count, 1)), rows)
    return hx.expand_dims(hx.transpose(made, perm=(1, 0, 2)), axes=(0,))


def attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, written_out: bool) -> Tensor:
    if not written_out:
        return hx.scaled_dot_product_attention(q, k, v, seen)
    hidden = hx.select(seen, hx.const(np.float32(0)), hx.const(np.finfo(np.float32).min))
    return hx.matmul(hx.softmax(hx.matmul(q, hx.transpose(k, perm=(0, 1, 3, 2))) * 8**-0.5 + hidden), v)


def decoding(
    spelling: str, of_states: bool, count: int, layers: int = 3, own_places: bool = False, written_out: bool = False
) -> Graph:
    """own_places: each row has a place of its own, which the caller gives."""
    x, position = hx.input("x", (count, 24)), hx.input("position", (count if own_places else 1,), "int64")
    index = position if count == 1 or own_places else position + hx.const(np.arange(count))
    seen = hx.const(np.arange(CACHE[2])) <= hx.reshape(index, shape=(count, 1))
    rng, updates, ports = np.random.default_rng(2), list[Tensor](), dict[str, Tensor]()
    for i in range(layers):
        parts = hx.split(hx.linear(x, rng.normal(0, 0.2, (72, 24)).astype(np.float32)), axis=1, num_splits=3)
        q, *new = (hx.transpose(hx.reshape(p, shape=(1, count, 3, 8)), perm=(0, 2, 1, 3)) for p in parts)
        both = []
        for name, rows in zip((f"keys.{i}", f"values.{i}"), new, strict=True):
            held = hx.state(name, shape=CACHE) if of_states else hx.input(name, CACHE)
            both.append(scattered(spelling, held, rows, index, count))
            if of_states:
                updates.append(hx.write_state(held, both[-1], 0))
            else:
                ports[f"new {name}"] = both[-1]
        y = attention(q, both[0], both[1], seen, written_out)
        x = x + hx.reshape(hx.transpose(y, perm=(0, 2, 1, 3)), shape=(count, 24))
    return graph({"y": x, **ports}, updates=updates)


@pytest.mark.parametrize("written_out", [False, True], ids=["attention", "written out"])
@pytest.mark.parametrize(("count", "own_places"), [(1, False), (4, False), (4, True)])
@pytest.mark.parametrize("of_states", [True, False], ids=["states", "ports"])
@pytest.mark.parametrize("spelling", ["index_put", "scatter", "three axes"])
def test_rows_that_are_scattered_do_not_cut_the_program(
    spelling: str, of_states: bool, count: int, own_places: bool, written_out: bool
) -> None:
    made = decoding(spelling, of_states, count, own_places=own_places, written_out=written_out)
    rng = np.random.default_rng(3)
    for chip in ("h13", "h17s"):
        devices = [s.device for s in divide(made, load_target(chip))[1]]
        assert devices == ["host", "ane", "host"]
    host, net = hx.compile(made, target="host"), hx.compile(made, target="h16g")
    written, held = dict[str, Array](), {n: np.zeros(CACHE, np.float32) for n in made.input_names() if "." in n}
    for at in (0, 4, 9, 16):
        place = np.array([at, 19, at, 2]) if own_places else np.array([at])  # the third row overwrites the first
        given = {"x": rng.standard_normal((count, 24)).astype(np.float32), "position": place}
        want = run_reference(made, given | held, written)
        near, far = as_dict(host, given | held), as_dict(net, given | held)
        for name, value in want.items():
            np.testing.assert_allclose(near[name], value, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(far[name], value, rtol=0.01, atol=0.01)
        held = {name: near[f"new {name}"] for name in held}
    for name, value in written.items():
        np.testing.assert_allclose(host.read_state(name), value, rtol=1e-5, atol=1e-5)
    if of_states:
        assert {"scatter_nd", "scatter_along_axis"}.isdisjoint(write_rows(made).ops)


def as_dict(net: Any, feeds: dict[str, Array]) -> dict[str, Array]:
    """The outputs of one call by name."""
    made = net(**feeds)
    names = [port.name for port in net.outputs]
    return dict(
        zip(names, made.values() if isinstance(made, dict) else made if len(names) > 1 else [made], strict=True)
    )


def test_an_index_below_zero_counts_from_the_end() -> None:
    made = decoding("index_put", True, 1, layers=1)
    net, given = hx.compile(made, target="host"), {"x": np.ones((1, 24), np.float32), "position": np.array([-1])}
    states = dict[str, Array]()
    want = run_reference(made, given, states)
    np.testing.assert_allclose(net(**given), want["y"], rtol=1e-5)
    np.testing.assert_allclose(net.read_state("keys.0"), states["keys.0"], rtol=1e-5, atol=1e-6)
    for at in (20, -21):
        with pytest.raises(hx.Error, match=str(at)):
            net(x=given["x"], position=np.array([at]))


@pytest.mark.parametrize("of_states", [True, False], ids=["states", "ports"])
def test_indices_that_go_on_at_zero(of_states: bool) -> None:
    """Rows at -2, -1, 0 and 1; out of range they stay an error. No mask reads them as well."""
    index = hx.input("position", (1,), "int32") + hx.const(np.arange(4, dtype=np.int32))
    query = hx.input("q", (3, 2, 8))
    both, updates = list[Tensor](), list[Tensor]()
    rng = np.random.default_rng(0)
    feeds: dict[str, Array] = {"q": rng.standard_normal(query.shape)}
    for name in ("keys", "values"):
        contents = rng.standard_normal((12, 3, 8)).astype(np.float32)
        whole = hx.state(name, contents) if of_states else hx.input(name, contents.shape)
        made = hx.scatter_nd(whole, hx.expand_dims(index, axes=(1,)), hx.input(f"new {name}", (4, 3, 8)))
        both.append(hx.transpose(made, perm=(1, 0, 2)))
        updates += [hx.write_state(whole, made)] if of_states else []
        feeds |= {f"new {name}": rng.standard_normal((4, 3, 8))} | ({} if of_states else {name: contents})
    made = graph({"y": hx.scaled_dot_product_attention(query, *both)}, updates=updates)
    feeds = {name: np.asarray(value, np.float32) for name, value in feeds.items()}
    nets = [hx.compile(made, target=target) for target in ("host", "h13")]
    for at in (-2, -12, -4, 0, 8):
        for net in nets:
            net.reset_state()
            want = run_reference(made, feeds | {"position": places(at)}, states := dict[str, Array]())
            np.testing.assert_allclose(net(**feeds, position=places(at)), want["y"], rtol=0.01, atol=0.01)
            for name, contents in states.items():
                np.testing.assert_allclose(net.read_state(name), contents, rtol=1e-3, atol=1e-3)
    for at in (9, -13):
        for net in nets:
            with pytest.raises(hx.Error, match="need -12 to 11"):
                net(**feeds, position=places(at))


def test_indices_that_are_not_one_row_each() -> None:
    """Indices that differ along the channels, and indices that are computed in floats."""
    step = hx.const(np.arange(4, dtype=np.int32))
    by_channel = hx.broadcast_to(hx.input("position", (1,), "int32") + step, shape=(1, 4, 4))
    rounded = hx.cast(hx.input("time", (1,)) + hx.cast(step, dtype="fp32"), dtype="int32")  # 0, 0, 1, 2 from -0.5 on
    rng = np.random.default_rng(1)
    for index, given in ((by_channel, {"position": places(3)}), (rounded, {"time": np.array([-0.5], np.float32)})):

        def side(name: str, index: Tensor = index) -> Tensor:
            whole, new = hx.input(name, (1, 12, 4)), hx.input(f"new {name}", (1, 4, 4))
            if len(index.shape) == 3:
                return hx.scatter_along_axis(whole, index, new, axis=1)
            lines = (hx.squeeze(x, axes=(0,)) for x in (whole, new))
            return hx.expand_dims(hx.scatter_nd(next(lines), hx.expand_dims(index, axes=(1,)), next(lines)), axes=(0,))

        query = hx.input("q", (1, 2, 4))
        made = graph({"y": hx.scaled_dot_product_attention(query, side("keys"), side("values"))})
        shapes = {n: v.shape for n, v in zip(made.input_names(), made.inputs, strict=True) if n not in given}
        feeds = given | {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        want = run_reference(made, feeds)["y"]
        np.testing.assert_allclose(run_reference(retarget(made, load_target("h13")), feeds)["y"], want, atol=1e-5)


def test_masks_of_floats_are_read_where_the_host_has_them() -> None:
    """As transformers makes them: the least number where a key is hidden. Several rows at once."""
    position = hx.input("position", (1,), "int32")
    index = position + hx.const(np.arange(3, dtype=np.int32))
    hidden = hx.const(np.arange(12, dtype=np.int32)) > hx.reshape(index, shape=(3, 1))
    least, rng = np.float32(np.finfo(np.float32).min), np.random.default_rng(0)
    x = hx.input("x", (1, 2, 3, 8))
    sides = []
    for name in ("keys", "values"):
        rows = hx.linear(x, rng.standard_normal((8, 8)).astype(np.float32))
        sides.append(hx.write_state(hx.state(name, shape=(1, 2, 12, 8)), rows, position, axis=2))
    feeds = {"x": rng.standard_normal(x.shape).astype(np.float32), "position": places(4)}
    for mask in (
        hx.select(hidden, hx.const(least), hx.const(np.float32(0))),
        hx.broadcast_to(hx.expand_dims(hx.cast(hidden, dtype="fp32") * least, axes=(0, 1)), shape=(1, 2, 3, 12)),
    ):
        made = graph({"y": hx.linear(hx.scaled_dot_product_attention(x, *sides, mask), np.eye(8, dtype=np.float32))})
        for chip in ("h13", "h17s"):
            assert [s.device for s in divide(made, load_target(chip))[1]] == ["host", "ane", "host"]
            want = run_reference(made, feeds)["y"]
            for numerics in ("ieee", "engine"):
                got = hx.compile(made, target=chip, numerics=numerics)(**feeds)  # type: ignore[arg-type]
                np.testing.assert_allclose(got, want, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("explicit", [True, False])
def test_attentions_that_are_written_out_in_several_layers(explicit: bool) -> None:
    """The second layer's rows depend on the first one's attention, which becomes another node twice."""
    x, position = hx.input("x", (3, 1, 8)), hx.input("position", (1,), "int32")
    shown, rng, updates = hx.const(np.arange(12, dtype=np.int32)) <= position, np.random.default_rng(0), list[Tensor]()
    y = x
    for i in range(3):
        sides = []
        for name in ("keys", "values"):
            rows = hx.linear(y, rng.standard_normal((8, 8)).astype(np.float32) * 0.3)
            sides.append(hx.write_state(hx.state(f"{name}.{i}", shape=(3, 12, 8)), rows, position, axis=1))
        updates += sides if explicit else []
        scores = hx.select(shown, hx.matmul(y, sides[0], transpose_y=True) * 0.3, hx.const(np.float32(-1e30)))
        y = y + hx.matmul(hx.softmax(scores), sides[1])
    made = graph({"y": y}, updates=updates)
    assert [s.device for s in divide(made, load_target("h16g"))[1]] == ["host", "ane", "host"]
    old, new = dict[str, Array](), dict[str, Array]()
    written = retarget(made, load_target("h16g"))
    for at in range(3):
        feeds = {"x": rng.standard_normal((3, 1, 8)).astype(np.float32), "position": places(at)}
        want, got = run_reference(made, feeds, old), run_reference(written, feeds, new)
        np.testing.assert_allclose(got["y"], want["y"], rtol=1e-4, atol=1e-5)
    assert old.keys() == new.keys()
    for name, contents in old.items():
        np.testing.assert_allclose(new[name], contents, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("chip", ["h13", "h17s"])
def test_other_readers_of_one_new_row_choose_it(chip: str) -> None:
    """A moving average over the last steps; the update is computed on the engine."""
    x, position = hx.input("x", (1, 16)), hx.input("position", (1,), "int32")
    window = hx.write_state(hx.state("window", (8, 16)), hx.relu(x) * 2.0, position, axis=0)
    y = hx.linear(hx.reduce_mean(window, axes=(0,), keep_dims=True), np.eye(16, dtype=np.float32) * 3)
    made = graph({"y": y})
    assert [s.device for s in divide(made, load_target(chip))[1]] == ["host", "ane", "host"]
    host, net = hx.compile(made, target="host"), hx.compile(made, target=chip, numerics="engine")
    rng = np.random.default_rng(0)
    for step in range(20):
        feeds = {"x": rng.standard_normal((1, 16)).astype(np.float32), "position": places(step % 8)}
        np.testing.assert_allclose(net(**feeds), host(**feeds), rtol=0.01, atol=0.01)
    np.testing.assert_allclose(net.read_state("window"), host.read_state("window"), rtol=1e-3, atol=1e-3)


# ---- one row by its index ----


def last_token() -> Graph:
    x, last = hx.input("x", (1, 24, 16)), hx.input("last", (1,), "int32")
    weight = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    hidden = hx.linear(x, weight)
    return graph({"y": hx.linear(hx.gather(hidden, last, axis=1), weight)})


@pytest.mark.parametrize("chip", CHIPS)
def test_the_row_of_an_index_stays_on_the_engine(chip: str) -> None:
    made = last_token()
    assert [s.device for s in divide(made, load_target(chip))[1]] == ["host", "ane"]
    x = np.random.default_rng(1).standard_normal((1, 24, 16)).astype(np.float32) * 20
    host, net = hx.compile(made, target="host"), hx.compile(made, target=chip)
    for at in (0, 7, 23, -1, -24):
        want = np.asarray(host(x=x, last=places(at)))
        assert np.abs(net(x=x, last=places(at)) - want).max() <= 2e-3 * np.abs(want).max()
    for at in (24, -25):
        with pytest.raises(hx.Error, match=f"got {at}, need -24 to 23"):
            net(x=x, last=places(at))


@pytest.mark.parametrize("numerics", ["ieee", "engine"])
@pytest.mark.parametrize("chip", CHIPS)
def test_infinities_of_the_row_stay(chip: str, numerics: Any) -> None:
    """Logits with hidden classes."""
    x, last, rng = hx.input("x", (1, 12, 16)), hx.input("last", (1,), "int32"), np.random.default_rng(0)
    hidden = hx.const(np.where(np.arange(16) % 3, np.inf, -np.inf).astype(np.float32))
    logits = hx.select(hx.const(np.arange(16) % 2 == 0), hx.linear(x, np.eye(16, dtype=np.float32)), hidden)
    made = graph({"y": hx.relu(-hx.gather(logits, last, axis=1))})
    assert [s.device for s in divide(made, load_target(chip))[1]] == ["host", "ane"]
    feeds = {"x": rng.standard_normal((1, 12, 16)).astype(np.float32), "last": places(5)}
    want = run_reference(made, feeds)["y"]
    assert np.isinf(want).any()
    np.testing.assert_allclose(hx.compile(made, target=chip, numerics=numerics)(**feeds), want, rtol=2e-3)


def test_tables_and_indices_of_the_engine_stay_as_they_are() -> None:
    """An embedding is the host's. An index that the engine computes would come from there."""
    ids = hx.input("ids", (1,), "int32")
    table = hx.const(np.random.default_rng(0).standard_normal((50, 16)).astype(np.float32))
    made = graph({"y": hx.relu(hx.gather(table, ids))})
    assert "reduce_max" not in retarget(made, load_target("h16g")).ops


def test_slices_of_weights_are_no_danger() -> None:
    """On h13 a slice that begins inside a row turns numbers above 4,094 into infinity. A softmax has none."""
    config = LlamaConfig(**(SIZES | FAMILIES["learned positions"]))
    with warnings.catch_warnings():
        warnings.simplefilter("error", hx.HazardWarning)
        hx.compile(one_token(config, weights_of(config)), target="h13")


def test_verdicts_and_parts_agree() -> None:
    config = LlamaConfig(**(SIZES | FAMILIES["llama"]))
    assert str(preflight(one_token(config, weights_of(config)), "M4").outcome).endswith("in 3 parts")
