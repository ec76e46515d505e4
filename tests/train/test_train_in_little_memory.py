"""A step whose params are updated in place gives the same bits row by row, within a budget, and with ports in the
arena."""

import numpy as np
import pytest

import hexane as hx
from decoders import decoder_weights
from hexane.graph import Array, Graph


def compiled(memory: hx.Memory) -> hx.Model:
    rng = np.random.default_rng(1)
    shapes = {"w1": (8, 3, 3, 3), "w2": (8, 8, 3, 3), "w3": (10, 512)}
    w = {n: hx.param(n, (rng.standard_normal(s) * 0.2).astype(np.float32)) for n, s in shapes.items()}
    y = hx.relu(hx.conv(hx.input("x", (2, 3, 16, 16)), w["w1"], pad=1))
    y = hx.max_pool(hx.relu(hx.conv(y, w["w2"], pad=1)), kernel_sizes=2, strides=2)
    loss = hx.cross_entropy(hx.linear(hx.flatten(y), w["w3"]), hx.input("labels", (2,), "int32"))
    made = hx.compile(hx.train.step(loss, list(w.values()), hx.train.adamw(1e-2), clip=1.0), threads=1, memory=memory)
    assert isinstance(made, hx.Model)
    return made


def contents(memory: hx.Memory) -> dict[str, Array]:
    net = compiled(memory)
    x = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32)
    for _ in range(3):
        net(x=x, labels=np.array([1, 7], np.int32))
    return {name: net.read_state(name) for name in net.state_names}


@pytest.mark.parametrize(
    "memory", [hx.Memory(rows=1), hx.Memory(hold_ports=True), hx.Memory(sram="200K")], ids=["rows", "ports", "budget"]
)
def test_a_step_has_the_same_bits(memory: hx.Memory) -> None:
    want = contents(hx.Memory())
    for name, array in contents(memory).items():
        np.testing.assert_array_equal(array, want[name], err_msg=name)


# ---- values that are computed again ----


def mlp(guard: str) -> Graph:
    rng = np.random.default_rng(0)
    params = [hx.param(f"w{i}", (rng.standard_normal((64, 64)) / 8).astype(np.float32)) for i in range(6)]
    y = hx.input("x", (256, 64))
    for w in params:
        y = hx.tanh(hx.matmul(y, w))
    loss = hx.cross_entropy(y, hx.input("labels", (256,), "int32"))
    return hx.train.step(loss, params, hx.train.adamw(1e-2), guard=guard)


def resnet8(guard: str) -> Graph:
    rng = np.random.default_rng(0)
    params: list[hx.Tensor] = []

    def param(*shape: int) -> hx.Tensor:
        data = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        params.append(hx.param(f"p{len(params)}", data.astype(np.float32)))
        return params[-1]

    def conv(x: hx.Tensor, channels: int, size: int = 3, stride: int = 1) -> hx.Tensor:
        return hx.conv(x, param(channels, x.shape[1], size, size), param(channels), strides=stride, pad=size // 2)

    def block(x: hx.Tensor, channels: int, stride: int) -> hx.Tensor:
        y = conv(hx.relu(conv(x, channels, 3, stride)), channels)
        return hx.relu(y + (conv(x, channels, 1, stride) if stride > 1 else x))

    y = hx.relu(conv(hx.input("x", (4, 3, 32, 32)), 16))
    y = block(block(block(y, 16, 1), 32, 2), 64, 2)
    y = hx.linear(hx.flatten(hx.avg_pool(y, kernel_sizes=8)), param(10, 64), param(10))
    loss = hx.cross_entropy(y, hx.input("labels", (4,), "int32"))
    return hx.train.step(loss, params, hx.train.adamw(1e-2), clip=1.0 if guard == "all" else None, guard=guard)


def decoder(guard: str) -> Graph:
    config = hx.train.LlamaConfig(dim=32, layers=4, heads=4, kv_heads=2, hidden=64, vocab=64, seq=32)
    model = hx.train.llama(config, weights=decoder_weights(config), batch=4)
    return hx.train.step(model.loss, list(model.params.values()), hx.train.adamw(1e-2), guard=guard)


STEPS = {"mlp": mlp, "resnet8": resnet8, "decoder": decoder}


def some(graph: Graph) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    feeds = {}
    for value in graph.inputs:
        whole = value.type.dtype.name.startswith("int")
        array = rng.integers(0, 10, value.shape) if whole else rng.standard_normal(value.shape)
        feeds[str(value.node.attrs["name"])] = array.astype(value.type.dtype.name if whole else np.float32)
    return feeds


def trained(net: hx.Model, feeds: dict[str, Array]) -> dict[str, Array]:
    for _ in range(3):
        net(feeds)
    return {name: net.read_state(name) for name in net.state_names}


SOME = [("mlp", "each"), ("resnet8", "all"), ("decoder", "each")]
OTHERS = [pytest.param(name, guard, marks=pytest.mark.slow) for name in STEPS for guard in ("all", "each")]


@pytest.mark.parametrize(("name", "guard"), [*SOME, *[p for p in OTHERS if p.values not in SOME]])
def test_half_of_the_arena_is_enough_for_the_same_bits(name: str, guard: str) -> None:
    graph = STEPS[name](guard)
    whole = hx.compile(graph, threads=1)
    assert isinstance(whole, hx.Model)
    sram = whole.memory["arena"] // 2 + whole.memory["scratch"]
    less = hx.compile(graph, threads=1, memory=hx.Memory(sram=sram))
    assert isinstance(less, hx.Model)
    assert less.program is not None
    assert less.memory["arena"] + less.memory["scratch"] <= sram
    assert less.memory["repeated"] > 0
    assert not less.program.loops
    assert "rematerialize" in {d.stage for d in less.program.decisions}
    feeds = some(graph)
    np.testing.assert_equal(trained(less, feeds), trained(whole, feeds))


def test_a_step_that_fits_fits_every_larger_limit_with_no_more_products() -> None:
    graph = mlp("each")
    whole = hx.compile(graph, threads=1)
    assert isinstance(whole, hx.Model)
    repeated = []
    for share in (0.5, 0.6, 0.7, 0.8, 0.9):
        sram = int(share * whole.memory["arena"]) + whole.memory["scratch"]
        net = hx.compile(graph, threads=1, memory=hx.Memory(sram=sram))
        assert isinstance(net, hx.Model)
        repeated.append(net.memory.get("repeated", 0))
    assert repeated == sorted(repeated, reverse=True)
    assert repeated[0] > repeated[-1]
