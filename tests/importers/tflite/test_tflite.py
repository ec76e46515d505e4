"""TFLite models that the tests write, against LiteRT's reference kernels: integers in every bit."""

import random
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.build import Tensor
from hexane.errors import Error, UnsupportedError
from hexane.importers.tflite.integer import scaled_once
from hexane.importers.tflite.opened import open_model
from hexane.ops.rewriter import Rewriter
from tflite_references import reference
from tflite_writer import TfliteModel

RNG = np.random.default_rng(7)


def ints(kind: str, *shape: int) -> np.ndarray:
    info = np.iinfo(kind)
    return RNG.integers(max(info.min, -(2**15)), min(info.max, 2**15 - 1), shape, endpoint=True).astype(kind)


def conv(kind: str, bias: str, activation: int = 3, padding: int = 0, stride: int = 2) -> TfliteModel:
    """CONV_2D with scales of channels, on images of an odd size."""
    m, zero = TfliteModel(), 0 if kind == "int16" else -7
    x = m.tensor((1, 9, 7, 3), kind, scales=0.02 if kind == "int8" else 0.0004, zero=zero)
    w = m.tensor((5, 3, 2, 3), "int8", ints("int8", 5, 3, 2, 3).clip(-127), [0.01, 0.02, 0.005, 0.013, 0.03])
    b = m.tensor((5,), bias, np.array([500, -3000, 20, 0, 90000]), [0.0002] * 5)
    y = m.tensor((1, 5, 4, 5), kind, scales=0.05 if kind == "int8" else 0.0009, zero=zero + 3 if zero else 0)
    m.op(
        "CONV_2D",
        [x, w, b],
        [y],
        stride_h=stride,
        stride_w=stride,
        padding=padding,
        fused_activation_function=activation,
    )
    m.graph["inputs"], m.graph["outputs"] = [x], [y]
    return m


def dense() -> TfliteModel:
    m = TfliteModel()
    x = m.tensor((3, 40), "int8", scales=0.03, zero=11)
    w = m.tensor((6, 40), "int8", ints("int8", 6, 40).clip(-127), 0.017)
    b = m.tensor((6,), "int32", np.array([7, -900, 4000, 1, 0, -1]), 0.03 * 0.017)
    y = m.tensor((3, 6), "int8", scales=0.21, zero=-4)
    m.op("FULLY_CONNECTED", [x, w, b], [y], fused_activation_function=1)
    m.graph["inputs"], m.graph["outputs"] = [x], [y]
    return m


def dense_16(bias: str) -> TfliteModel:
    m = TfliteModel()
    x = m.tensor((2, 3, 40), "int16", scales=0.0003)
    w = m.tensor((6, 40), "int8", ints("int8", 6, 40).clip(-127), [0.01, 0.02, 0.005, 0.013, 0.03, 0.017])
    b = m.tensor((6,), bias, np.array([500, -3000, 20, 0, 90000, -1]), [0.0002] * 6)
    y = m.tensor((2, 3, 6), "int16", scales=0.0009)
    options = {"quantized_bias_type": 2} if bias == "int32" else {}
    m.op("FULLY_CONNECTED", [x, w, b], [y], keep_num_dims=1, fused_activation_function=1, **options)
    m.graph["inputs"], m.graph["outputs"] = [x], [y]
    return m


def unary(name: str, kind: str, to: float, zero: int, shape: tuple[int, ...] = (4, 64), **options: Any) -> TfliteModel:
    m = TfliteModel()
    x = m.tensor(shape, kind, scales=0.0003 if kind == "int16" else 0.04, zero=0 if kind == "int16" else 5)
    y = m.tensor(shape, kind, scales=to, zero=zero)
    m.op(name, [x], [y], **options)
    m.graph["inputs"], m.graph["outputs"] = [x], [y]
    return m


def binary(name: str, kind: str, **options: Any) -> TfliteModel:
    m, small = TfliteModel(), kind == "int16"
    x = m.tensor((4, 33), kind, scales=0.0003 if small else 0.04, zero=0 if small else 5)
    y = m.tensor((33,), kind, scales=0.0005 if small else 0.013, zero=0 if small else -9)
    z = m.tensor((4, 33), kind, scales=0.0007 if small else 0.06, zero=0 if small else 2)
    m.op(name, [x, y], [z], **options)
    m.graph["inputs"], m.graph["outputs"] = [x, y], [z]
    return m


QUANTISED = {
    "conv int8": lambda: conv("int8", "int32"),
    "conv int8 valid": lambda: conv("int8", "int32", 1, 1),
    "conv int16": lambda: conv("int16", "int64", 0),
    "dense": dense,
    "dense int16": lambda: dense_16("int64"),
    "dense int16, int32 bias": lambda: dense_16("int32"),
    "add": lambda: binary("ADD", "int8", fused_activation_function=1),
    "sub": lambda: binary("SUB", "int8"),
    "mul": lambda: binary("MUL", "int8"),
    "add int16": lambda: binary("ADD", "int16", pot_scale_int16=0),
    "mul int16": lambda: binary("MUL", "int16"),
    "squared difference": lambda: binary("SQUARED_DIFFERENCE", "int8"),
    "softmax int8": lambda: unary("SOFTMAX", "int8", 1 / 256, -128, beta=1.0),
    "softmax uint8": lambda: unary("SOFTMAX", "uint8", 1 / 256, 0, beta=0.7),
    "softmax int16": lambda: unary("SOFTMAX", "int16", 1 / 32768, 0, beta=1.0),
    "logistic int8": lambda: unary("LOGISTIC", "int8", 1 / 256, -128),
    "logistic int16": lambda: unary("LOGISTIC", "int16", 1 / 32768, 0),
    "tanh int16": lambda: unary("TANH", "int16", 1 / 32768, 0),
    "hard swish": lambda: unary("HARD_SWISH", "int8", 0.03, -100),
    "leaky relu": lambda: unary("LEAKY_RELU", "int8", 0.02, 3, alpha=0.1),
    "l2": lambda: unary("L2_NORMALIZATION", "int8", 1 / 128, 0),
    "requantise": lambda: unary("QUANTIZE", "int8", 0.031, -20),
}


@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_ops_have_the_bits_of_the_reference_kernels(name: str) -> None:
    m = QUANTISED[name]()
    data = m.tobytes()
    net = hx.compile(data, threads=1)
    kinds = {9: "int8", 3: "uint8", 7: "int16"}
    feeds = [ints(kinds[m.graph["tensors"][i]["type"]], *m.graph["tensors"][i]["shape"]) for i in m.graph["inputs"]]
    (want,) = reference(data, *feeds)
    assert np.array_equal(np.asarray(net(*feeds)), want)


@pytest.mark.parametrize("most", [31, 43.9])
def test_sums_are_scaled_once_as_doubles_do(most: float) -> None:
    """200,000 sums, products of any size, and a few units in the last place beside a half."""
    rng, count = np.random.default_rng(int(most)), 100_000
    sums = np.trunc(np.exp2(rng.uniform(0, most, 2 * count))) * rng.choice([-1, 1], 2 * count)
    halves = rng.integers(0, 40_000, count) + rng.choice([0.5, 1.0], count, p=[0.95, 0.05])
    reals = np.concatenate([halves / np.abs(sums[:count]), np.exp2(rng.uniform(-50, 15, count))])
    for _ in range(4):
        reals = np.nextafter(reals, rng.choice([0, np.inf], 2 * count))
    x = hx.input("x", (2 * count,), "int64")
    net = hx.compile(Tensor(scaled_once(Rewriter(), x.value, reals)), target="host", threads=1)
    size = np.abs(sums * reals)
    whole = np.floor(size)
    want = np.sign(sums) * (whole + (size - whole >= 0.5))
    got, most_stored = np.asarray(net(sums.astype(np.int64))), 1 << 20  # no result is as large
    assert np.array_equal(got.clip(-most_stored, most_stored), want.clip(-most_stored, most_stored))


def test_a_float_network_stays_channels_last() -> None:
    """Convolution with weights of fp16 behind a DEQUANTIZE, depthwise convolution, pool."""
    m = TfliteModel()
    w = RNG.standard_normal((4, 3, 3, 3)).astype(np.float16)
    d = RNG.standard_normal((1, 3, 3, 8)).astype(np.float32)
    x, half, wide = m.tensor((1, 10, 9, 3)), m.tensor(w.shape, "float16", w), m.tensor(w.shape)
    bias, other, zeros = m.tensor((4,), data=np.arange(4)), m.tensor(d.shape, data=d), m.tensor((8,), data=np.zeros(8))
    y, z, p = m.tensor((1, 10, 9, 4)), m.tensor((1, 8, 7, 8)), m.tensor((1, 4, 3, 8))
    m.op("DEQUANTIZE", [half], [wide])
    m.op("CONV_2D", [x, wide, bias], [y], stride_h=1, stride_w=1, fused_activation_function=3)
    m.op("DEPTHWISE_CONV_2D", [y, other, zeros], [z], stride_h=1, stride_w=1, padding=1, depth_multiplier=2)
    m.op("AVERAGE_POOL_2D", [z], [p], filter_height=2, filter_width=2, stride_h=2, stride_w=2, padding=1)
    m.graph["inputs"], m.graph["outputs"] = [x], [p]
    feed = RNG.standard_normal((1, 10, 9, 3)).astype(np.float32)
    (want,) = reference(m.tobytes(), feed)
    got = np.asarray(hx.compile(m.tobytes(), threads=1)(feed))
    assert got.shape == (1, 4, 3, 8)
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


def test_a_variable_is_a_state() -> None:
    """Two calls add up what they are given."""
    m = TfliteModel()
    x, handle, old, new = m.tensor((3,)), m.tensor((1,), "RESOURCE"), m.tensor((3,)), m.tensor((3,))
    m.op("VAR_HANDLE", [], [handle], shared_name="sum")
    m.op("READ_VARIABLE", [handle], [old])
    m.op("ADD", [old, x], [new])
    m.op("ASSIGN_VARIABLE", [handle, new], [])
    m.graph["inputs"], m.graph["outputs"] = [x], [new]
    net = hx.compile(m.tobytes(), threads=1)
    one = np.array([1, 2, 3], np.float32)
    assert np.array_equal(np.asarray(net(one)), one)
    assert np.array_equal(np.asarray(net(one)), 2 * one)


def test_a_variable_keeps_its_value_whatever_the_shapes() -> None:
    """Calls with 1, 2, 1 and 3 rows add up; LiteRT's interpreter gives these sums after resize_tensor_input."""
    m = TfliteModel()
    x, handle, old, new = m.tensor((1, 3), shape_signature=[-1, 3]), m.tensor((1,), "RESOURCE"), *two(m, (3,))
    total, axis = m.tensor((3,)), m.tensor((1,), "int32", data=[0])
    m.op("VAR_HANDLE", [], [handle], shared_name="sum")
    m.op("READ_VARIABLE", [handle], [old])
    m.op("SUM", [x, axis], [total], keep_dims=False)
    m.op("ADD", [old, total], [new])
    m.op("ASSIGN_VARIABLE", [handle, new], [])
    m.graph["inputs"], m.graph["outputs"] = [x], [new]
    net = hx.compile(m.tobytes(), threads=1, memory=hx.Memory(variants=0))
    assert [net(np.ones((n, 3), np.float32)).tolist() for n in (1, 2, 1, 3)] == [[k] * 3 for k in (1, 3, 4, 7)]
    net.reset_state()
    assert net(np.ones((2, 3), np.float32)).tolist() == [2] * 3


def two(m: TfliteModel, shape: tuple[int, ...]) -> tuple[int, int]:
    return m.tensor(shape), m.tensor(shape)


def test_signatures_are_functions() -> None:
    m = TfliteModel()
    for name in ("NEG", "ABS"):
        m.subgraph()
        x, y = m.tensor((4,)), m.tensor((4,))
        m.op(name, [x], [y])
        m.graph["inputs"], m.graph["outputs"] = [x], [y]
        entry = {"inputs": [{"name": "a", "tensor_index": x}], "outputs": [{"name": "b", "tensor_index": y}]}
        m.signatures.append({**entry, "signature_key": name.lower(), "subgraph_index": len(m.subgraphs) - 1})
    model = open_model(m.tobytes())
    feed = np.array([-1, 2, -3, 0], np.float32)
    for name, want in (("neg", -feed), ("abs", abs(feed))):
        assert np.array_equal(np.asarray(hx.compile(model.graph(name, {}), threads=1)(a=feed)), want)


def test_all_ops_that_cannot_be_read_are_named_at_once() -> None:
    m = TfliteModel()
    x, y, z = (m.tensor((4,)) for _ in range(3))
    m.op("FlexErfinv", [x], [y])
    m.op("HASHTABLE_LOOKUP", [y], [z])
    m.graph["inputs"], m.graph["outputs"] = [x], [z]
    with pytest.raises(UnsupportedError, match=r"(?s)2 kinds of ops.*'Erfinv'.*table of keys"):
        hx.compile(m.tobytes())


def test_operators_out_of_order_are_refused() -> None:
    m = TfliteModel()
    x, y, z = (m.tensor((4,)) for _ in range(3))
    m.op("NEG", [y], [z])
    m.op("ABS", [x], [y])
    m.graph["inputs"], m.graph["outputs"] = [x], [z]
    with pytest.raises(UnsupportedError, match="before it is computed"):
        hx.compile(m.tobytes())


def test_damaged_files_end_in_an_error_or_a_graph() -> None:
    """A byte or more of another value, or an end too early."""
    random_ = random.Random(3)
    seeds = [conv("int8", "int32").tobytes(), dense().tobytes(), binary("ADD", "int8").tobytes()]
    for _ in range(600):
        data = bytearray(random_.choice(seeds))
        for _ in range(random_.randint(1, 8)):
            data[random_.randrange(len(data))] = random_.choice((0, 1, 127, 128, 255, random_.randrange(256)))
        if random_.random() < 0.1:
            del data[random_.randrange(len(data)) :]
        try:
            model = open_model(bytes(data))
            for name in model.signatures:
                model.graph(name, {})
        except Error:
            pass


@pytest.mark.parametrize("time_major", [False, True])
def test_a_simple_network_of_floats_is_one_step_of_any_length(time_major: bool) -> None:
    steps, batch, inputs, units = 600, 2, 5, 7
    rng = np.random.default_rng(12)
    w, r, bias = ((rng.uniform(-1, 1, s) / 3).astype(np.float32) for s in ((units, inputs), (units, units), (units,)))
    m = TfliteModel()
    x = m.tensor((steps, batch, inputs) if time_major else (batch, steps, inputs))
    y = m.tensor((steps, batch, units) if time_major else (batch, steps, units))
    operands = [x, *(m.tensor(a.shape, data=a) for a in (w, r, bias)), m.tensor((batch, units), is_variable=True)]
    m.op("UNIDIRECTIONAL_SEQUENCE_RNN", operands, [y], fused_activation_function=4, time_major=time_major)
    m.graph["inputs"], m.graph["outputs"] = [x], [y]
    net = hx.compile(m.tobytes(), threads=1)
    assert [step.kernel for step in net.program.steps].count("recurrent") == 1
    hidden = np.zeros((batch, units))
    for _ in range(2):
        feed = rng.standard_normal((steps, batch, inputs)).astype(np.float32)
        want = []
        for now in feed.astype(np.float64):
            hidden = np.tanh(now @ w.T + hidden @ r.T + bias)
            want.append(hidden)
        got = np.asarray(net(feed if time_major else feed.swapaxes(0, 1)))
        np.testing.assert_allclose(got if time_major else got.swapaxes(0, 1), np.array(want), atol=2e-6)


@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("peepholes", [False, True])
def test_an_lstm_of_floats_is_one_step_of_any_length(time_major: bool, peepholes: bool) -> None:
    steps, batch, inputs, units = 600, 2, 5, 7  # more steps than are written out
    rng = np.random.default_rng(11)

    def numbers(*shape: int) -> np.ndarray:
        return (rng.uniform(-1, 1, shape) / np.sqrt(shape[-1])).astype(np.float32)

    w, r = [numbers(units, inputs) for _ in range(4)], [numbers(units, units) for _ in range(4)]
    p, bias = [numbers(units) for _ in range(3)], [numbers(units) for _ in range(4)]
    m = TfliteModel()
    x = m.tensor((steps, batch, inputs) if time_major else (batch, steps, inputs))
    y = m.tensor((steps, batch, units) if time_major else (batch, steps, units))
    operands = [x, *(m.tensor(a.shape, data=a) for a in (*w, *r))]
    operands += [m.tensor(a.shape, data=a) if peepholes else -1 for a in p]
    operands += [*(m.tensor(a.shape, data=a) for a in bias), -1, -1]
    operands += [m.tensor((batch, units), is_variable=True) for _ in range(2)]
    m.op("UNIDIRECTIONAL_SEQUENCE_LSTM", operands, [y], fused_activation_function=4, time_major=time_major)
    m.graph["inputs"], m.graph["outputs"] = [x], [y]
    net = hx.compile(m.tobytes(), threads=1)
    assert [step.kernel for step in net.program.steps].count("recurrent") == 1
    assert len(net.program.steps) < 8
    hidden, cell = np.zeros((batch, units)), np.zeros((batch, units))

    def sigmoid(v: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-v))

    for _ in range(2):  # the second call goes on from the states of the first
        feed = rng.standard_normal((steps, batch, inputs)).astype(np.float32)
        want = []
        for now in feed.astype(np.float64):
            enter, forget, new, out = (now @ w[g].T + hidden @ r[g].T + bias[g] for g in range(4))
            if peepholes:
                enter, forget = enter + p[0] * cell, forget + p[1] * cell
            cell = sigmoid(forget) * cell + sigmoid(enter) * np.tanh(new)
            hidden = sigmoid(out + p[2] * cell if peepholes else out) * np.tanh(cell)
            want.append(hidden)
        got = np.asarray(net(feed if time_major else feed.swapaxes(0, 1)))
        np.testing.assert_allclose(got if time_major else got.swapaxes(0, 1), np.array(want), atol=2e-6)


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("window", [1, 3])
def test_layers_of_dynamic_range_have_the_bits_of_litert(images: int, window: int) -> None:
    """The next layer rounds its input to 8 bits: a last bit that differs becomes a step."""
    m, rng = TfliteModel(), np.random.default_rng(window)
    x, y = m.tensor((images, 12, 11, 24)), m.tensor((images, 12, 11, 20))
    w = m.tensor(
        (20, window, window, 24), "int8", rng.integers(-127, 128, (20, window, window, 24)), rng.uniform(1e-3, 1e-2, 20)
    )
    bias = m.tensor((20,), "float32", rng.normal(0, 3, 20))
    m.op("CONV_2D", [x, w, bias], [y], stride_h=1, stride_w=1, dilation_h_factor=1, dilation_w_factor=1)
    m.codes[-1]["version"] = 5
    m.graph["inputs"], m.graph["outputs"] = [x], [y]
    data = m.tobytes()
    net = hx.compile(data, threads=1)
    for low, high in ((0, 255), (-3, 9), (-1e4, 1), (5, 6)):
        feed = rng.uniform(low, high, (images, 12, 11, 24)).astype(np.float32)
        (want,) = reference(data, feed)
        assert np.array_equal(np.asarray(net(feed)), want)


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16"])
def test_quantised_floats_round_halves_away_from_zero_and_stay_at_the_ends(kind: str) -> None:
    """LiteRT's default kernels keep numbers out of range at the ends. Its reference kernels do so up to 2^31 steps."""
    zero = {"int8": -7, "uint8": 200}.get(kind, 0)
    m, count = TfliteModel(), 4000
    x, y = m.tensor((count,)), m.tensor((count,), kind, scales=0.25, zero=zero)
    m.op("QUANTIZE", [x], [y])
    m.graph["inputs"], m.graph["outputs"] = [x], [y]
    steps = RNG.normal(size=count) * 10.0 ** RNG.integers(0, 7, count)
    steps[: count // 2] = np.round(steps[: count // 2] * 2) / 2
    steps[:4] = 0.5 - 2.0**-25, -0.5 + 2.0**-25, 2.0**23 + 1, -(2.0**23) - 1
    data, feed = m.tobytes(), (steps * 0.25).astype(np.float32)
    np.testing.assert_array_equal(hx.compile(data)(feed), reference(data, feed)[0])
    far = np.resize(np.array([1e18, -1e18, 3e38, -3e38, np.inf, -np.inf], np.float32), count)
    info = np.iinfo(kind)
    np.testing.assert_array_equal(hx.compile(data)(far), np.where(far > 0, info.max, info.min))
