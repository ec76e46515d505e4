"""Layers that only move data: chains of them become the fewest layers, and few are left in transformers."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hexane as hx
from architectures import ARCHITECTURES, Layers
from engine import run_layers
from hexane import pipeline
from hexane.graph import Graph, TensorType, unique
from hexane.ops.reference import run_reference
from hexane.passes.engine.lower_segment import PHASES, lower_segment
from hexane.passes.engine.moves import Step, keeps_rows, layers_of, written
from hexane.passes.engine.reorders import parts_of
from hexane.passes.engine.ways import traced, ways
from hexane.passes.fuse.split_products import split_products
from hexane.targets import Chip
from hexane.targets.query import load_chip

MOVES = {
    "transpose",
    "reshape",
    "flatten",
    "unflatten",
    "input_view",
    "concat",
    "broadcast",
    "tile",
    "gather",
    "reverse",
}
pytestmark = pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")
LAYOUTS = (
    "channels_first",
    "join_moves",
    "rows_as_batch",
    "mirror_by_product",
    "share_keys",
    "keep_images",
)  # the passes that move data otherwise
CHIPS = ("h13", "h14", "h16", "h17s")


def moved(array: Any, steps: list[Step]) -> Any:
    for kind, values in steps:
        array = array.reshape(values) if kind == "reshape" else array.transpose(values)
    return array


def random_chain(rng: np.random.Generator) -> tuple[tuple[int, ...], list[Step]]:
    """Reshapes to factors of the elements, and transposes."""
    factors = [int(n) for n in rng.choice([1, 2, 3, 4], rng.integers(2, 5))]
    shape, steps = tuple(factors), list[Step]()
    at = shape
    for _ in range(rng.integers(1, 6)):
        if rng.random() < 0.5:
            perm = tuple(int(p) for p in rng.permutation(len(at)))
            steps.append(("transpose", perm))
            at = tuple(at[p] for p in perm)
        else:
            cut = list(at)
            if rng.random() < 0.5 and len(cut) > 1:
                i = int(rng.integers(len(cut) - 1))
                cut[i : i + 2] = [cut[i] * cut[i + 1]]
            else:
                i = int(rng.integers(len(cut)))
                cut[i : i + 1] = [2, cut[i] // 2] if cut[i] % 2 == 0 else [1, cut[i]]
            steps.append(("reshape", tuple(cut[:5])) if math.prod(cut[:5]) == math.prod(at) else ("transpose", tuple(range(len(at)))))  # fmt: skip
            at = steps[-1][1] if steps[-1][0] == "reshape" else at
    return shape, steps


@pytest.mark.parametrize("seed", range(150))
def test_every_way_to_write_a_chain_moves_the_same_elements(seed: int) -> None:
    shape, steps = random_chain(np.random.default_rng(seed))
    x = np.arange(math.prod(shape), dtype=np.float16).reshape(shape)
    want = moved(x, steps)
    source = unique("input", "x", TensorType(hx.graph(hx.input("x", (1,), "fp16")).inputs[0].dtype, shape))
    chip = load_chip("h13")
    for way in ways(source.type, steps, chip):
        got = moved(x, list(way))
        np.testing.assert_array_equal(got, want)
        assert got.shape == want.shape
        back, found = traced(written(source, way, ()))
        assert back == source
        assert parts_of(shape, tuple(found)) == parts_of(shape, tuple(steps))


def test_the_order_of_a_chain_is_found_where_it_has_one() -> None:
    heads: tuple[Step, ...] = (("reshape", (1, 4, 16, 32)), ("transpose", (0, 1, 3, 2)))
    assert parts_of((1, 64, 1, 32), heads) == ((512, 4), (1, 32), (32, 16))
    assert parts_of((4, 6), (("transpose", (1, 0)), ("reshape", (8, 3)), ("transpose", (1, 0)))) is None


def test_rows_are_kept_by_a_reshape_of_the_other_axes_only() -> None:
    assert keeps_rows((1, 64, 1, 32), (1, 4, 16, 32))
    assert not keeps_rows((1, 1, 32, 64), (1, 32, 4, 16))
    assert keeps_rows((), (1, 1))


WINDOWS: tuple[Step, ...] = (("reshape", (4, 4, 4, 4, 32)), ("transpose", (0, 2, 1, 3, 4)), ("reshape", (16, 16, 32)))


@pytest.mark.parametrize("chip", CHIPS)
def test_windows_of_pixels_are_one_layer(chip: str) -> None:
    """Rows of channels stay rows, so that only the transpose moves anything; it was between two reshapes."""
    source = unique("input", "x", hx.graph(hx.input("x", (1, 16, 16, 32), "fp16")).inputs[0].type).type
    found = ways(source, WINDOWS, load_chip(chip))
    assert min(layers_of(way, (1, 16, 16, 32), None, for_product=False) for way in found) == 1
    back: list[Step] = [("reshape", (4, 4, 4, 4, 32)), WINDOWS[1], ("reshape", (1, 256, 32))]
    found = ways(source, back, load_chip(chip))
    assert min(layers_of(way, (1, 16, 16, 32), None, for_product=False) for way in found) == 1


def test_a_convolution_writes_heads_of_windows_in_its_slot() -> None:
    """The product behind exchanges rows and columns."""
    steps: list[Step] = [("transpose", (0, 2, 3, 1)), ("reshape", (16, 16, 2, 16)), ("transpose", (0, 2, 1, 3))]
    source = unique("input", "x", hx.graph(hx.input("x", (1, 32, 16, 16), "fp16")).inputs[0].type).type
    found = ways(source, steps, load_chip("h13"))
    net = hx.graph(hx.conv(hx.input("x", (1, 4, 16, 16)), np.ones((32, 4, 1, 1), np.float32)))
    layer = next(n for n in lower_segment(net, load_chip("h13")).nodes if n.op == "anec.convolution")
    assert min(layers_of(way, (1, 32, 16, 16), layer, for_product=True) for way in found) < 1


@pytest.mark.parametrize("chip", CHIPS)
def test_about_half_of_the_layers_of_a_swin_transformer_compute(chip: str) -> None:
    """What is left: rolls, the merge of neighbours, and windows that go to the layout of convolutions."""
    assert share(ARCHITECTURES["swin"](), chip) <= 0.4


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("step", [2, 4])
def test_neighbours_in_an_image_are_merged_by_one_layer(chip: str, step: int) -> None:
    """Each slice is a view, whatever index it begins at. There were twelve layers for two by two pixels."""
    x = hx.relu(hx.input("x", (1, 8, 8, 6)))
    parts = [x[:, row::step, column::step] for column in range(step) for row in range(step)]
    graph = hx.graph(hx.relu(hx.concat(*parts, axis=3)))
    net = hx.compile(graph, target=chip, threads=1, device="cpu")
    assert net.program is not None
    assert [layer.op for layer in net.program.layers if layer.op.removeprefix("anec.") in MOVES] == ["anec.concat"]
    feed = np.random.default_rng(1).standard_normal((1, 8, 8, 6)).astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(net(feed), next(iter(run_reference(graph, {"x": feed}).values())))


# ---- networks ----


def share(graph: Graph, chip: str) -> float:
    net = hx.compile(graph, target=chip, threads=1, device="cpu")
    assert net.program is not None
    layers = net.program.layers
    return sum(layer.op.removeprefix("anec.") in MOVES for layer in layers) / len(layers)


def exported(x: Any, b: Layers, heads: int, norm: Callable[[Any], Any], mask: Any, fused: bool) -> Any:
    """A block as torch's exporter writes it: products of (in, out), sums of biases, reshapes with 0 and -1, a scale on
    both sides, masks by `where` that make rows of NaN 0. fused: queries, keys and values are one product."""
    batch, tokens, width = x.shape
    each = width // heads

    def product(v: Any, out: int) -> Any:
        inner = v.shape[-1]
        return hx.matmul(v, b.normal(inner, out, scale=inner**-0.5)) + b.normal(out, scale=0.1)

    y = norm(x)
    joint = hx.split(product(y, 3 * width), num_splits=3, axis=2) if fused else [product(y, width) for _ in range(3)]
    query, key, value = (hx.reshape(v, shape=(batch, tokens, -1, each)) for v in joint)
    by = np.float32(each**-0.25)
    scores = (hx.transpose(query, perm=(0, 2, 1, 3)) * by) @ (hx.transpose(key, perm=(0, 2, 3, 1)) * by)
    scores = scores if mask is None else hx.select(mask, scores, np.float32(-3.4028235e38))
    weights = hx.softmax(scores, axis=-1)
    mixed = hx.transpose(weights @ hx.transpose(value, perm=(0, 2, 1, 3)), perm=(0, 2, 1, 3))
    x = x + product(hx.reshape(mixed, shape=(batch, tokens, -1)), width)
    return x + product(hx.gelu(product(norm(x), 2 * width)), width)


def rms_norm(x: Any) -> Any:
    """As torch's exporter writes it."""
    wide = hx.const(np.random.default_rng(8).uniform(0.5, 1.5, x.shape[-1]).astype(np.float32))
    return x * (np.float32(1) / hx.sqrt(hx.reduce_mean(x * x, axes=(-1,), keep_dims=True) + np.float32(1e-6))) * wide


def t5() -> Graph:
    """Encoder blocks with RMS norms, and a bias by relative position that is added to the scores."""
    b = Layers(5)
    x = hx.input("x", (1, 32, 64))
    bias = b.normal(1, 4, 32, 32, scale=1.0)
    for _ in range(2):
        y, heads = rms_norm(x), []
        for _ in range(3):
            part = hx.reshape(hx.matmul(y, b.normal(64, 64, scale=0.125)), shape=(1, -1, 4, 16))
            heads.append(hx.transpose(part, perm=(0, 2, 1, 3)))
        scores = heads[0] @ hx.transpose(heads[1], perm=(0, 1, 3, 2)) + bias
        mixed = hx.transpose(hx.softmax(scores, axis=-1) @ heads[2], perm=(0, 2, 1, 3))
        x = x + hx.matmul(hx.reshape(mixed, shape=(1, -1, 64)), b.normal(64, 64, scale=0.125))
        inner = hx.relu(hx.matmul(rms_norm(x), b.normal(64, 128, scale=0.125)))
        x = x + hx.matmul(inner, b.normal(128, 64, scale=0.1))
    return hx.graph(rms_norm(x))


def llama(heads: int = 4, shared: int = 2, added: bool = True) -> Graph:
    """Decoder blocks with RMS norms, rotary embedding of halves, keys and values that heads share, and a gated product.
    added: the mask is numbers that are added to the scores, else chooses."""
    b, each, tokens = Layers(6), 16, 32
    x = hx.input("x", (1, tokens, heads * each))
    angles = np.outer(np.arange(tokens), 10000.0 ** (-np.arange(0, each, 2) / each))
    cos, sin = (f(np.concatenate([angles, angles], 1))[None, None].astype(np.float32) for f in (np.cos, np.sin))
    causal = np.where(np.tri(tokens, dtype=np.bool_), 0, np.finfo(np.float32).min).astype(np.float32)[None, None]

    def product(v: Any, out: int) -> Any:
        return hx.matmul(v, b.normal(v.shape[-1], out, scale=v.shape[-1] ** -0.5))

    def in_heads(v: Any) -> Any:
        return hx.transpose(hx.reshape(v, shape=(1, tokens, -1, each)), perm=(0, 2, 1, 3))

    def turned(v: Any) -> Any:
        return v * cos + hx.concat(-v[..., each // 2 :], v[..., : each // 2], axis=-1) * sin

    def for_all(v: Any) -> Any:
        wide = hx.broadcast_to(hx.expand_dims(v, axes=(2,)), shape=(1, shared, heads // shared, tokens, each))
        return hx.reshape(wide, shape=(1, heads, tokens, each))

    for _ in range(2):
        y = rms_norm(x)
        query, key, value = (in_heads(product(y, n * each)) for n in (heads, shared, shared))
        scores = turned(query) @ hx.transpose(for_all(turned(key)), perm=(0, 1, 3, 2)) * np.float32(each**-0.5)
        scores = scores + causal if added else hx.select(causal == 0, scores, np.float32(np.finfo(np.float32).min))
        mixed = hx.transpose(hx.softmax(scores, axis=-1) @ for_all(value), perm=(0, 2, 1, 3))
        x = x + product(hx.reshape(mixed, shape=(1, tokens, -1)), heads * each)
        y = rms_norm(x)
        x = x + product(hx.silu(product(y, 128)) * product(y, 128), heads * each)
    return hx.graph(rms_norm(x))


def segformer() -> Graph:
    """Blocks whose tokens are pixels: keys and values of an image that a convolution makes smaller, and a depthwise
    convolution inside the feedforward network."""
    b, width, each = Layers(7), 32, 16
    x = hx.input("x", (1, 3, 32, 32))

    def tokens(v: Any) -> Any:
        return hx.transpose(hx.reshape(v, shape=(1, v.shape[1], -1)), perm=(0, 2, 1))

    def as_image(v: Any, size: int) -> Any:
        return hx.reshape(hx.transpose(v, perm=(0, 2, 1)), shape=(1, -1, size, size))

    def in_heads(v: Any) -> Any:
        return hx.transpose(hx.reshape(v, shape=(1, v.shape[1], -1, each)), perm=(0, 2, 1, 3))

    def product(v: Any, out: int) -> Any:
        return hx.matmul(v, b.normal(v.shape[-1], out, scale=v.shape[-1] ** -0.5)) + b.normal(out, scale=0.1)

    for size in (8, 4):
        x = b.layer_norm(tokens(b.conv(x, width, size=3, stride=4 if size == 8 else 2)))
        y = b.layer_norm(x)
        small = b.layer_norm(tokens(b.conv(as_image(y, size), width, size=3, stride=2)))
        query, key, value = (in_heads(product(v, width)) for v in (y, small, small))
        scores = query @ hx.transpose(key, perm=(0, 1, 3, 2)) * np.float32(each**-0.5)
        mixed = hx.transpose(hx.softmax(scores, axis=-1) @ value, perm=(0, 2, 1, 3))
        x = x + product(hx.reshape(mixed, shape=(1, size * size, width)), width)
        inner = as_image(product(b.layer_norm(x), 2 * width), size)
        inner = hx.gelu(tokens(b.conv(inner, 2 * width, size=3, groups=2 * width)))
        x = as_image(b.layer_norm(x + product(inner, width)), size)
    return hx.graph(x)


TWINS: dict[str, Callable[[], Graph]] = {
    "twin": lambda: twin(fused=True, masked=True),
    "t5": t5,
    "llama": llama,
    "segformer": segformer,
}


def twin(fused: bool, masked: bool) -> Graph:
    b = Layers(3)
    x = hx.input("x", (1, 16, 64))
    mask = np.tri(16, dtype=np.bool_) if masked else None
    for _ in range(2):
        x = exported(x, b, 4, b.layer_norm, mask, fused)
    return hx.graph(b.layer_norm(x))


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", ["vit", "gpt2", "whisper_encoder"])
def test_few_layers_of_a_transformer_only_move_data(name: str, chip: str) -> None:
    """They were 55 % and more."""
    assert share(ARCHITECTURES[name](), chip) <= 0.15


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("masked", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("fused", [False, True], ids=["three_products", "one_product"])
def test_few_layers_of_an_exported_transformer_only_move_data(fused: bool, masked: bool, chip: str) -> None:
    assert share(twin(fused, masked), chip) <= 0.15


@pytest.mark.parametrize("chip", CHIPS)
def test_few_layers_of_a_network_with_rms_norms_only_move_data(chip: str) -> None:
    """They were 30 %: an RMS norm is the first half of the norm of a pair, which was joined and cut."""
    assert share(t5(), chip) <= 0.1


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("shared", [1, 2, 4])
def test_few_layers_of_a_network_with_grouped_heads_only_move_data(shared: int, chip: str) -> None:
    """They were 35 %: keys and values were copied for each head that shares them."""
    assert share(llama(shared=shared), chip) <= 0.15


@pytest.mark.parametrize("chip", CHIPS)
def test_few_layers_of_a_network_whose_tokens_are_pixels_only_move_data(chip: str) -> None:
    """Images became rows of pixels and images again around each convolution."""
    assert share(segformer(), chip) <= 0.25


@pytest.mark.parametrize("added", [False, True], ids=["chosen", "added"])
def test_attention_under_a_constant_mask_is_one_layer(added: bool) -> None:
    program = hx.compile(llama(added=added), target="h13", threads=1, device="cpu").program
    assert program is not None
    ops = [layer.op for layer in program.layers]
    assert ops.count("anec.sdpa") == 2
    assert "anec.softmax" not in ops


@pytest.mark.parametrize("added", [False, True], ids=["chosen", "added"])
@pytest.mark.parametrize("size", [1.0, 30.0, 120.0])
def test_scores_of_any_size_hide_what_a_constant_mask_hides(size: float, added: bool) -> None:
    """Scores up to 14,000; the oracle is fp64."""
    rng = np.random.default_rng(2)
    query, key, value = (rng.uniform(-1, 1, (1, 2, 8, 4)).astype(np.float16).astype(np.float32) for _ in range(3))
    query, key = (np.round(query * 4) / 4 * size), np.round(key * 4) / 4 * size / 4
    mask = np.where(np.tri(8, dtype=np.bool_), 0, np.finfo(np.float32).min).astype(np.float32)
    q, k, v = (hx.input(name, (1, 2, 8, 4)) for name in "qkv")
    product = q @ hx.transpose(k, perm=(0, 1, 3, 2))
    scored = product + mask if added else hx.select(mask == 0, product, np.float32(-1e9))
    graph = hx.graph(hx.softmax(scored, axis=-1) @ v)
    net = hx.compile(graph, target="h13", threads=1, device="cpu")
    assert net.program is not None
    assert "anec.sdpa" in [layer.op for layer in net.program.layers]
    scores = np.where(mask == 0, query.astype(np.float64) @ key.swapaxes(-1, -2), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    want = weights / weights.sum(-1, keepdims=True) @ value
    np.testing.assert_allclose(net({"q": query, "k": key, "v": value}), want, atol=0.02)


def test_keys_that_heads_share_are_not_copied() -> None:
    program = hx.compile(llama(), target="h13", threads=1, device="cpu").program
    assert program is not None
    assert not any(layer.op in ("anec.broadcast", "anec.tile") for layer in program.layers)
    assert all(len(tensor.type.shape) <= 4 for tensor in program.tensors)


@pytest.mark.parametrize("numerics", ["engine", "ieee"])
@pytest.mark.parametrize("name", ["bert", "vit", "swin", "gpt2", "convnext", *TWINS])
def test_the_layout_changes_no_bit(name: str, numerics: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = TWINS[name]() if name in TWINS else ARCHITECTURES[name]()
    rng = np.random.default_rng(4)
    feeds = {
        str(v.node.attrs["name"]): rng.standard_normal(v.shape).astype(np.float32) * 20
        if v.dtype.kind == "float"
        else rng.integers(0, 2, v.shape).astype(v.dtype.numpy)
        for v in graph.inputs
    }
    got = hx.compile(graph, target="h13", threads=1, device="cpu", numerics=numerics)(feeds)
    plain = [p for p in pipeline.LOWERING if p.name not in LAYOUTS]
    assert len(plain) < len(pipeline.LOWERING)
    monkeypatch.setattr(pipeline, "LOWERING", plain)
    want = hx.compile(graph, target="h13", threads=1, device="cpu", numerics=numerics)(feeds)
    for name_of, array in want.items() if isinstance(want, dict) else [("y", want)]:
        np.testing.assert_array_equal(got[name_of] if isinstance(got, dict) else got, array)


def test_an_activation_that_a_convolution_takes_stays_with_it() -> None:
    """The channels of a shuffled network move behind activations, which would be layers in another layout."""
    net = hx.compile(ARCHITECTURES["shufflenet_v2"](), target="h13", threads=1, device="cpu")
    assert net.program is not None
    assert not any(layer.op == "anec.neuron" for layer in net.program.layers)


def test_a_reshape_that_keeps_rows_is_no_layer_but_at_a_port() -> None:
    x = hx.relu(hx.input("x", (1, 64, 1, 32)))
    inside = hx.compile(hx.graph(hx.softmax(hx.reshape(x, shape=(1, 4, 16, 32)), axis=1)), target="h13", device="cpu")
    rows = hx.compile(hx.graph(hx.softmax(hx.reshape(x, shape=(1, 16, 4, 32)), axis=1)), target="h13", device="cpu")
    columns = hx.compile(hx.graph(hx.softmax(hx.reshape(x, shape=(1, 4, 32, 16)), axis=1)), target="h13", device="cpu")
    port = hx.compile(
        hx.graph(hx.reshape(hx.input("x", (1, 64, 1, 32)), shape=(1, 4, 16, 32))), target="h13", device="cpu"
    )
    found = [[layer.op for layer in net.program.layers] for net in (inside, rows, columns, port) if net.program]
    assert ["anec.reshape" in ops for ops in found] == [False, False, True, True]


def test_a_view_of_whole_rows_is_no_layer_but_at_a_port() -> None:
    def found(graph: Graph) -> list[str]:
        program = hx.compile(graph, target="h13", device="cpu").program
        assert program is not None
        return [layer.op for layer in program.layers]

    x = hx.input("x", (1, 64, 4, 32))
    y = hx.softmax(x, axis=1)
    assert "anec.input_view" not in found(hx.graph(hx.softmax(y[:, 16:48], axis=1)))
    assert "anec.input_view" not in found(hx.graph(hx.softmax(y[:, :, 1:3], axis=1)))
    assert "anec.input_view" in found(hx.graph(hx.softmax(y[..., 8:24], axis=1)))
    assert "anec.input_view" in found(hx.graph({"y": y[:, 16:48], "z": hx.relu(y)}))
    assert "anec.input_view" in found(hx.graph(hx.softmax(x[:, 16:48], axis=1)))


def test_a_layer_reads_of_a_tensor_the_rows_that_it_needs() -> None:
    y = hx.softmax(hx.input("x", (1, 64, 4, 32)), axis=1)
    parts = {"half": y[:, :32], "both halves": y[:, :32] * y[:, 32:], "twice": y[:, :32] + y[:, 16:48] * 2}
    for name, last in parts.items():
        program = hx.compile(hx.graph(last), target="h13", device="cpu").program
        assert program is not None
        read = [part for layer in program.layers if layer.reads for part in layer.parts]
        assert max(read) <= 64 * 4 * 32, name
    half = hx.compile(hx.graph(hx.softmax(y[:, :32], axis=1)), target="h13", device="cpu").program
    assert half is not None
    assert half.layers[-1].parts == (32 * 4 * 32,)


@pytest.mark.parametrize("seed", range(30))
def test_layers_in_another_layout_compute_the_same(seed: int) -> None:
    """Random blocks of layers that may have any layout, between products."""
    rng = np.random.default_rng(seed)

    def whole(*shape: int) -> Any:
        return rng.integers(-2, 3, shape).astype(np.float16)

    x = hx.linear(hx.input("x", (1, 5, 4), "fp16"), whole(6, 4))
    values = [x, hx.linear(hx.input("u", (1, 5, 4), "fp16"), whole(6, 4))]
    for _ in range(5):
        a, b = (values[int(i)] for i in rng.integers(0, len(values), 2))
        match int(rng.integers(7)):
            case 0:
                made = a + b
            case 1:
                made = hx.relu(a) - b
            case 2:
                made = hx.maximum(a, whole(5, 6))
            case 3:
                made = hx.reduce_max(a, axes=(int(rng.integers(1, 3)),)) + b
            case 4:
                made = hx.concat(a, b, axis=2)[:, :, 3:9]
            case 5:
                made = hx.select(hx.greater(a, whole(1, 5, 1)), b, hx.const(np.float16(1)))
            case _:
                made = hx.reshape(hx.reshape(hx.abs(a), shape=(1, 1, 5, 6)) + whole(6), shape=(1, 5, 6))
        values.append(made)
    graph = hx.graph({"y": hx.linear(values[-1], whole(3, 6)), "z": values[-2]})
    chip = load_chip("h13")
    layers = graph
    for phase in PHASES:
        layers = phase.run(layers, chip)
    feeds = {n: rng.integers(-2, 3, (1, 5, 4)).astype(np.float16) for n in graph.input_names()}
    want, got = run_reference(graph, feeds), run_layers(layers, feeds)
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array.astype(got[name].dtype))


# ---- products whose columns are parted ----


def parted(then: Callable[[hx.Tensor], Any], bias: bool = True) -> Graph:
    rng = np.random.default_rng(6)
    x = hx.input("x", (1, 5, 8))
    y = hx.matmul(x, rng.standard_normal((8, 12)).astype(np.float32))
    return hx.graph(then(y + rng.standard_normal(12).astype(np.float32) if bias else y))


def products(graph: Graph) -> list[tuple[int, ...]]:
    return [tuple(n.types[0].shape) for n in graph.nodes if n.op in ("matmul", "linear")]


CUTS: dict[str, Callable[[hx.Tensor], Any]] = {
    "split": lambda y: hx.split(y, num_splits=3, axis=-1),
    "uneven": lambda y: hx.split(y, split_sizes=(2, 10), axis=-1),
    "slices": lambda y: [y[:, :, :4], y[..., 4:-4], y[..., -4:]],
    "reshaped": lambda y: hx.split(hx.reshape(y, shape=(5, -1)), num_splits=2, axis=1),
    "columns left out": lambda y: [y[..., 1:3], y[..., 7:]],
}
KEPT: dict[str, Callable[[hx.Tensor], Any]] = {
    "overlap": lambda y: [y[..., :8], y[..., 4:]],
    "read as a whole": lambda y: [*hx.split(y, num_splits=3, axis=-1), hx.relu(y)],
    "rows": lambda y: hx.split(y, split_sizes=(2, 3), axis=1),
    "one slice": lambda y: y[..., :8],
    "steps": lambda y: [y[..., ::2], y[..., 1::2]],
    "columns reshaped": lambda y: hx.split(hx.reshape(y, shape=(1, 10, 6)), num_splits=2, axis=2),
}


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("case", CUTS)
def test_parted_columns_are_products_of_their_own(case: str, bias: bool) -> None:
    graph = parted(CUTS[case], bias)
    made = split_products(graph, load_chip("h13"))
    assert isinstance(load_chip("h13"), Chip)
    assert len(products(made)) > 1
    assert not any(n.op in ("split", "slice_by_index") for n in made.nodes)
    feed = {"x": np.random.default_rng(7).standard_normal((1, 5, 8)).astype(np.float32)}
    for name, array in run_reference(graph, feed).items():
        np.testing.assert_allclose(run_reference(made, feed)[name], array, rtol=1e-12)


@pytest.mark.parametrize("case", KEPT)
def test_a_product_that_is_not_parted_stays(case: str) -> None:
    graph = parted(KEPT[case])
    assert split_products(graph, load_chip("h13")) is graph


def test_a_product_with_weights_that_may_change_stays() -> None:
    graph = hx.graph(
        hx.split(hx.input("x", (5, 8)) @ hx.param("w", np.ones((8, 12), np.float32)), num_splits=3, axis=1)
    )
    assert split_products(graph, load_chip("h13")) is graph


@pytest.mark.parametrize("chip", CHIPS)
def test_a_number_of_the_whole_tensor_may_stand_among_layers_that_move(chip: str) -> None:
    """A scalar has no axes to give its factor a place on."""
    rng = np.random.default_rng(0)
    weights = rng.normal(0, 0.1, (64, 64)).astype(np.float32)
    h = hx.gelu(hx.matmul(hx.input("x", (8, 64)), weights))
    most = hx.maximum(hx.reduce_max(hx.abs(h), axes=(0, 1), keep_dims=False), 1.0) * 0.3
    y = hx.matmul(h * hx.reshape(hx.inverse(most), shape=(1, 1)), weights)
    x = rng.normal(0, 1, (8, 64)).astype(np.float32)
    np.testing.assert_allclose(hx.compile(y, target=chip)(x), hx.compile(y)(x), atol=2e-2)


def test_a_product_with_a_reader_of_fewer_axes_is_not_split() -> None:
    y = hx.matmul(hx.input("x", (4, 8)), np.ones((8, 8), np.float32))
    graph = hx.graph([hx.slice_by_index(y, begin=(0, 0), end=(4, 4)), hx.reshape(y, shape=(32,))])
    assert split_products(graph, load_chip("h13")) is graph
