"""Netplists: what is written is read back the same and computes the same; what is none is refused by name."""

import copy
import plistlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.emit.netplist import emit_netplist
from hexane.errors import Error
from hexane.graph import Graph
from hexane.netplist import NetConstant, Netplist, NetPort, Unit, as_graph, read_plist, write_plist
from hexane.netplist.read import MEANINGS
from hexane.netplist.units import UNITS
from hexane.netplist.write import UNITS as WRITTEN
from hexane.ops.reference import run_reference
from hexane.targets.query import load_chip
from turns import share

Tensor = hx.Tensor
CHIP = load_chip("h13")


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float16)


def image() -> Tensor:
    return hx.input("x", (1, 8, 6, 10), "fp16")


def rows() -> Tensor:
    return hx.input("x", (2, 5, 16), "fp16")


def graph_of(name: str) -> Graph:
    make, source = GRAPHS[name]
    return hx.graph({"y": make(source())})


GRAPHS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[], Tensor]]] = {
    "conv with a bias": (
        lambda x: hx.conv(x, numbers(16, 8, 3, 3), numbers(16), pad=(1, 0, 2, 1), strides=(2, 1)),
        image,
    ),
    "grouped conv": (lambda x: hx.conv(x, numbers(16, 4, 1, 3), groups=2), image),
    "max pool": (lambda x: hx.max_pool(x, kernel_sizes=(3, 2), strides=(1, 2), pad=(1, 1, 0, 0)), image),
    "average pool": (lambda x: hx.avg_pool(x, kernel_sizes=2, strides=2, pad=1, exclude_padding=False), image),
    "activations": (lambda x: hx.leaky_relu(hx.elu(hx.gelu(hx.tanh(x)), alpha=0.5), alpha=0.25), image),
    "limits": (lambda x: hx.clip(hx.silu(x) + hx.square(x), alpha=-0.5, beta=1.5), image),
    "roots": (lambda x: hx.rsqrt(hx.sqrt(hx.abs(x)) + 1.0), image),
    "exponential": (lambda x: hx.exp(x), image),
    "rounding": (lambda x: hx.floor(x) - hx.ceil(x) * hx.round(x), image),
    "broadcast operands": (lambda x: hx.maximum(x * numbers(8, 1, 1), hx.minimum(x, numbers(10))), image),
    "numbers": (lambda x: (x * 0.5 + 3.0) - 1.0, image),
    "division": (lambda x: x / (hx.abs(x) + 1.0), image),
    "linear": (lambda x: hx.linear(x, numbers(7, 16), numbers(7)), rows),
    "matmul": (lambda x: hx.matmul(x, hx.transpose(x, perm=(0, 2, 1))), rows),
    "matmul of a matrix": (lambda x: hx.matmul(x, numbers(16, 3)), rows),
    "attention": (lambda x: hx.scaled_dot_product_attention(x, x * 0.5, x), rows),
    "reductions": (lambda x: hx.reduce_max(x, axes=(1,)) - hx.reduce_mean(x, axes=(2, 3)), image),
    "sums": (lambda x: hx.reduce_sum(x, axes=(-1,)) + hx.reduce_min(x, axes=(1,)), rows),
    "softmax": (lambda x: hx.softmax(x, axis=1), rows),
    "moves": (lambda x: hx.tile(hx.reshape(hx.transpose(x, perm=(1, 2, 0)), shape=(5, 8, 4)), reps=(1, 2, 1)), rows),
    "slices": (lambda x: hx.concat(x[:, :, 1:5:2], x[:, :, 2:4], axis=2), image),
    "shuffles": (lambda x: hx.pixel_shuffle(hx.space_to_depth(x, block_size=2), upscale_factor=2), image),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_read_back_is_what_was_written_and_computes_the_same(name: str) -> None:
    graph = graph_of(name)
    net = emit_netplist(graph, CHIP)
    back = read_plist(write_plist(net), net.weights)
    assert back == net

    x = numbers(*graph.inputs[0].shape, seed=3)
    expected = run_reference(graph, {"x": x})["y"].astype(float)
    got = run_reference(
        as_graph(back), {"x": x.reshape(net.inputs[0].dims[0], *net.inputs[0].dims[1:2], *net.inputs[0].dims[3:])}
    )
    np.testing.assert_allclose(
        got["y"].astype(float).reshape(expected.shape), expected, rtol=0, atol=4e-3 * np.abs(expected).max()
    )


def test_every_unit_that_is_written_is_known_and_has_a_graph() -> None:
    made = {u.type for name in GRAPHS for u in emit_netplist(graph_of(name), CHIP).units}
    assert made <= MEANINGS.keys() <= UNITS.keys()
    assert {
        "SDPA",
        "MatrixMultiplication",
        "Conv",
        "GOC",
        "Broadcast",
        "InputView",
        "PixelShuffle",
        "SpaceToChannel",
    } <= made
    assert len(WRITTEN) > 20


def one_unit(unit: Unit, *shapes: tuple[int, ...], constants: dict[str, np.ndarray] | None = None) -> Netplist:
    """A netplist of one unit over inputs x0, x1 of these shapes, and constants."""
    weights, kept = b"", []
    for name, data in (constants or {}).items():
        n, c, h, w = data.shape
        kept.append(NetConstant(name, "Float16", len(weights), (n, c, 1, h, w)))
        weights += data.tobytes()
    inputs = tuple(NetPort(f"x{i}", "Float16", (s[0], s[1], 1, *s[2:])) for i, s in enumerate(shapes))
    return Netplist("n", inputs, (unit,), tuple(kept), (NetPort("y", "Float16", bottom=unit.name),), weights)


def bits(value: float) -> int:
    return int(np.array(value, np.float16).view(np.uint16))


def test_a_gain_and_offset_are_the_bits_of_fp16() -> None:
    net = one_unit(Unit("u", "GOC", ("x0",), {"ScaleScalar": bits(0.5), "BiasScalar": bits(3)}), (1, 2, 3, 4))
    x = numbers(1, 2, 3, 4)
    np.testing.assert_array_equal(run(net, x), ((x * np.float16(0.5)) + np.float16(3)))


def test_a_scale_does_nothing_to_a_product() -> None:
    x, y = numbers(1, 2, 3, 4), numbers(1, 2, 3, 4, seed=1)
    for kind, expected in (("Mult", x * y), ("Add", (x + y) * np.float16(2))):
        net = one_unit(Unit("u", "ScaledElementWise", ("x0", "x1"), {"Type": kind, "Scale": bits(2)}), x.shape, y.shape)
        np.testing.assert_array_equal(run(net, x, y), expected)


def test_a_dynamic_goc_may_be_an_addition_alone() -> None:
    x, scale, bias = numbers(1, 2, 3, 4), numbers(1, 2, 1, 1), numbers(1, 2, 1, 1, seed=5)
    given = {"scale": scale, "bias": bias}
    alone = one_unit(Unit("u", "DynamicGOC", ("x0", "bias"), {"BiasOnly": True}), x.shape, constants=given)
    np.testing.assert_array_equal(run(alone, x), x + bias)
    both = one_unit(Unit("u", "DynamicGOC", ("x0", "scale", "bias"), {}), x.shape, constants=given)
    np.testing.assert_array_equal(run(both, x), x * scale + bias)


def test_a_comparison_gives_ones_and_zeros() -> None:
    x, y = numbers(1, 2, 3, 4), numbers(1, 2, 3, 4, seed=1)
    net = one_unit(Unit("u", "ElementWise", ("x0", "x1"), {"Type": "GreaterThan"}), x.shape, y.shape)
    np.testing.assert_array_equal(run(net, x, y), (x > y).astype(np.float16))


def run(net: Netplist, *arrays: np.ndarray) -> np.ndarray:
    back = read_plist(write_plist(net), net.weights)
    return run_reference(as_graph(back), {f"x{i}": a for i, a in enumerate(arrays)})["y"]


@pytest.mark.parametrize(
    ("unit", "says"),
    [
        (Unit("u", "SDPA", ("x0",) * 4, {"SubtractMax": False}), "SubtractMax: got False, need True"),
        (Unit("u", "SDPA", ("x0",) * 4, {"SubtractMax": True}), "as the scale, need a constant of one element"),
        (
            Unit("u", "Sort", ("x0",), {"Direction": "Up", "SortDimension": "Width"}),
            "got a unit Sort, need one whose meaning",
        ),
        (Unit("u", "InputView", ("x0",), {"Dimension": "Width", "Offset": 3, "Size": 2}), "need them within 4"),
        (Unit("u", "Softmax", ("x0",), {"Dimension": "Depth"}), "got the dimension 'Depth'"),
        (Unit("u", "Softmax", ("x0",), {"Dimension": "Width"}, channels=9), "OutputChannels: got 9, need 2"),
        (
            Unit(
                "u", "Conv", ("x0",), {"Type": "Conv", "KernelWidth": 1, "KernelHeight": 1, "Step": [1, 1]}, channels=4
            ),
            "KernelOffset: got 0 for 16 bytes",
        ),
    ],
)
def test_a_unit_without_a_meaning_is_refused(unit: Unit, says: str) -> None:
    with pytest.raises(Error, match=says):
        as_graph(one_unit(unit, (1, 2, 3, 4)))


def plist() -> dict[str, Any]:
    made = emit_netplist(hx.graph({"y": hx.relu(hx.conv(image(), numbers(4, 8, 1, 1), numbers(4)))}), CHIP)
    loaded: dict[str, Any] = plistlib.loads(write_plist(made))
    return loaded


WEIGHTS = 4 * 8 * 2 + 4 * 2


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("Version",), "1.0.9", "Version: got '1.0.9', need '1.0.10'"),
        (("Networks",), ["a", "b"], "got 2 networks and 1 procedures"),
        (("ProcedureList", 0, "InputList", 0, "InputType"), "Float64", "InputType: got 'Float64', need one of"),
        (("ProcedureList", 0, "InputList", 0, "InputWidth"), 0, "InputWidth: got 0, need 1 to"),
        (("ProcedureList", 0, "OutputList"), [], "OutputList: got none"),
        (("network", "conv", "Type"), "Convolution", "conv.Type: got 'Convolution', need one of"),
        (("network", "conv", "Bottom"), ["nowhere"], "conv.Bottom: got 'nowhere', need an input"),
        (("network", "conv", "Bottom"), ["x", "x"], "Bottom: got 2, need 1 to 1 for Conv"),
        (("network", "conv", "Params", "KernelMode"), "Sparse", "KernelMode: got 'Sparse', need one of: Dense, Unity"),
        (("network", "conv", "Params", "Kernelwidth"), 3, "got 'Kernelwidth', need one of"),
        (("network", "conv", "Params", "PadTop"), True, "PadTop: got True, need int"),
        (("network", "neuron", "Params"), {}, "got no Type, which Neuron needs"),
        (("network", "const", "ConstantByteOffset"), 1 << 30, "need at most 136, the weights' size"),
        (("network", "Units"), ["neuron", "conv"], "neuron.Bottom: got 'elementwise'"),
        (("network", "Units"), "conv", "Units: got str, need list"),
    ],
)
def test_what_is_wrong_is_named(path: tuple[Any, ...], value: Any, says: str) -> None:
    made = plist()
    inner: Any = made
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(Error, match=says):
        read_plist(plistlib.dumps(made), bytes(136))


def test_a_layer_without_a_unit_is_an_error_that_names_it() -> None:
    with pytest.raises(Error, match=r"got the layer anec\.layer_norm, which no unit"):
        emit_netplist(hx.graph({"y": hx.layer_norm(rows(), axes=(-1,))}), CHIP)
    deep = hx.relu(hx.input("x", (1, 2, 3, 4, 5), "fp16"))
    with pytest.raises(Error, match="need at most four axes"):
        emit_netplist(hx.graph({"y": deep}), CHIP)


def mutant(random: np.random.Generator, whole: dict[str, Any], text: bytes, form: plistlib.PlistFormat) -> bytes:
    """A property list with a value exchanged, or with bytes that are wrong."""
    if random.random() < 0.3:
        broken = bytearray(text)
        for _ in range(random.integers(1, 5)):
            broken[random.integers(len(broken))] = random.integers(256)
        return bytes(broken[: random.integers(1, len(broken) + 1)] if random.random() < 0.2 else broken)
    made = copy.deepcopy(whole)
    at: Any = made
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = keys[random.integers(len(keys))]
        if not isinstance(at[key], (dict, list)) or not at[key] or random.random() < 0.1:
            break
        at = at[key]
    values = (
        0,
        -1,
        1 << 40,
        "x",
        "conv",
        [],
        {},
        True,
        1.5,
        b"",
        ["conv"],
        {"Dimension": "Width"},
        1 << 63,
        -(1 << 62),
    )
    if random.random() < 0.2:
        del at[key]
    else:
        at[key] = values[random.integers(len(values))]
    return written(made, form)


def written(made: dict[str, Any], form: plistlib.PlistFormat) -> bytes:
    """As XML where the binary form cannot hold a number."""
    try:
        return plistlib.dumps(made, fmt=form)
    except OverflowError:
        return plistlib.dumps(made)


def hunt(count: int, seed: int, form: plistlib.PlistFormat = plistlib.FMT_XML) -> int:
    """Reads mutants; how many were still netplists. Anything but an Error fails."""
    whole, random, good = plist(), np.random.default_rng(seed), 0
    text = plistlib.dumps(whole, fmt=form)
    for _ in range(count):
        try:
            read = read_plist(mutant(random, whole, text, form), bytes(136))
            graph = as_graph(read)
        except Error:
            continue
        assert isinstance(graph, Graph)
        good += 1
    return good


FORMS = pytest.mark.parametrize("form", [plistlib.FMT_XML, plistlib.FMT_BINARY], ids=["xml", "binary"])


@FORMS
def test_broken_files_are_refused_and_nothing_else_happens(form: plistlib.PlistFormat) -> None:
    assert 0 < hunt(400, 1, form) < 400


@pytest.mark.slow
@FORMS
@pytest.mark.parametrize("seed", share(range(10)))
def test_twenty_thousand_broken_files(seed: int, form: plistlib.PlistFormat) -> None:
    assert hunt(2000, seed + 100, form) < 2000
