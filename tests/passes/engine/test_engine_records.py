"""Every layer of the engine: what the executor makes of it against its record, on the record's own cases; and the types
of its slots."""

from typing import Any

import numpy as np
import pytest

import hexane as hx
from cases import arrays
from compare import assert_close, assert_within_ulps
from engine import feeds_of, of_layer, run_layers
from hexane.graph import EpilogueSlot
from hexane.ops import ENGINE_OPS, USER_OPS, Op
from hexane.ops.reference import run_reference
from hexane.ops.slots import CHAIN, POINTS, SLOTS, activation, slot
from hexane.targets.floors import layers

CASES = [(op, i) for op in ENGINE_OPS.values() for i in range(len(op.cases))]
IDS = [f"{op.name}-{i}" for op, i in CASES]
rng = np.random.default_rng(3)


@pytest.mark.parametrize(("op", "i"), CASES, ids=IDS)
@pytest.mark.parametrize("kind", ["fp32", "fp16"])
def test_a_layer_computes_what_its_record_says(op: Op, i: int, kind: str) -> None:
    case = op.cases[i]
    inputs: list[Any] = [
        a.astype(np.float16) if kind == "fp16" and a is not None and a.dtype == np.float32 else a
        for a in arrays(op, case)
    ]
    try:
        graph = of_layer(op.name, inputs, **dict(case.attrs or {}))
    except hx.Error:
        if kind == "fp32":
            raise
        pytest.skip("the layer does not take fp16")
    want, got = run_reference(graph, feeds_of(graph, inputs)), run_layers(graph, feeds_of(graph, inputs))
    apart = op.layer == "CropResize"  # written with others, which round each
    for name in want:
        if kind == "fp16" and apart:
            np.testing.assert_allclose(got[name], want[name], rtol=5e-3, atol=5e-3)
        else:
            assert_close(got[name], want[name])


@pytest.mark.parametrize(("op", "i"), CASES, ids=IDS)
def test_a_layer_prints_and_reads_back(op: Op, i: int) -> None:
    graph = of_layer(op.name, arrays(op, op.cases[i]), **dict(op.cases[i].attrs or {}))
    assert str(hx.parse(str(graph), graph.constants())) == str(graph)


def test_every_layer_that_has_a_descriptor_is_there() -> None:
    native = {name for name, row in layers().items() if row.descriptor and row.export}
    assert len(native) == 45
    assert native <= {op.layer for op in ENGINE_OPS.values()}
    assert {op.layer for op in ENGINE_OPS.values()} - {""} <= set(layers())


def test_no_layer_is_an_op_that_users_write() -> None:
    assert not USER_OPS.keys() & ENGINE_OPS.keys()
    assert all(name.startswith("anec.") and op.level == "engine" and op.expand for name, op in ENGINE_OPS.items())


def test_every_layer_with_slots_is_run_by_a_unit() -> None:
    units = {name: op.unit for name, op in ENGINE_OPS.items() if op.epilogue}
    assert set(units.values()) == {"mac", "planar"}
    assert {name for name, unit in units.items() if unit == "mac"} == {
        "anec.convolution", "anec.cross_correlation", "anec.deconvolution", "anec.linear", "anec.matmul",
    }  # fmt: skip


# ---- slots ----

X, W = rng.uniform(-1, 1, (1, 3, 6, 5)).astype(np.float16), rng.uniform(-1, 1, (4, 3, 3, 3)).astype(np.float16)
GAIN, OFFSET = rng.uniform(0.5, 2, 4).astype(np.float16), rng.uniform(-1, 1, 4).astype(np.float16)
SCALE = rng.uniform(0.01, 0.02, 4).astype(np.float16)
PAD = {"explicit_padding": (1, 1, 1, 1)}
FULL: tuple[EpilogueSlot, ...] = (
    slot("kernel_scale", scale=3, axis=1),
    slot("texture", height=2, width=1),
    slot("broadcast", shape=(2, 4, 12, 5)),
    activation("pre_activation", "leaky_relu", 0.25),
    slot("gain_offset", gain=4, offset=5, axis=1),
    activation("post_activation", "tanh"),
    slot("transpose", perm=(0, 2, 3, 1)),
    slot("quant", dtype="int8", scale=6, zero=-1, axis=0),
)
BYTES = rng.integers(-127, 128, W.shape).astype(np.int8)
INPUTS = [X, BYTES, None, SCALE, GAIN, OFFSET, np.float32(0.0078125)]


def test_a_layer_has_the_seven_slots_of_the_listing_in_its_order() -> None:
    """Listing 22.3. The scale of quantised weights stands before them, and is none of them."""
    assert SLOTS == ("texture", "broadcast", "pre_activation", "gain_offset", "post_activation", "transpose", "quant")
    assert ("kernel_scale", *SLOTS) == CHAIN


def test_all_slots_at_once_run_in_their_order() -> None:
    graph = of_layer("anec.convolution", INPUTS, (1, 3, 4, 5, 6), **PAD, epilogue=FULL)
    assert str(graph.outputs[0].value.type) == "int8[2, 12, 5, 4]"
    feeds = feeds_of(graph, INPUTS)
    got, want = run_layers(graph, feeds)["y0"], run_reference(graph, feeds)["y0"]
    assert np.abs(got.astype(int) - want).max() <= 1
    assert np.unique(got).size > 50
    assert str(hx.parse(str(graph), graph.constants())) == str(graph)


@pytest.mark.parametrize("point", POINTS)
def test_a_layer_rounds_where_its_node_says(point: str) -> None:
    slots = [s for s in FULL if s.op not in ("quant", "texture", "broadcast")]
    inputs = INPUTS[:6]
    graph = of_layer("anec.convolution", inputs, (1, 3, 4, 5), **PAD, epilogue=tuple(slots), rounds=(point,))
    got = run_layers(graph, feeds_of(graph, inputs))["y0"]
    assert_within_ulps(got, run_reference(graph, feeds_of(graph, inputs))["y0"], 1)
    once = of_layer("anec.convolution", inputs, (1, 3, 4, 5), **PAD, epilogue=tuple(slots))
    assert (run_layers(once, feeds_of(once, inputs))["y0"] != got).any() == (point not in ("output", "post_activation"))


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        ((FULL[5], FULL[3]), "got pre_activation after post_activation"),
        ((FULL[5], FULL[5]), "got post_activation after post_activation"),
        ((EpilogueSlot("relu"),), "need one of kernel_scale, texture"),
        ((activation("post_activation", "sine"),), "got the activation 'sine'"),
        ((slot("gain_offset", gain=9, offset=-1, axis=1),), "need operands among the inputs"),
        ((slot("gain_offset", gain=3, offset=3, axis=1),), "need each from 3 on once"),
        ((slot("gain_offset", gain=3, offset=-1, axis=2),), r"need one float or \(6,\)"),
        ((slot("transpose", perm=(0, 1, 1, 2)),), "need each axis once"),
        ((slot("broadcast", shape=(1, 4, 7, 5)),), "need axes of extent 1"),
        ((slot("texture", height=0, width=1),), "need an image and factors from 1 on"),
        ((slot("quant", dtype="fp16", scale=3, zero=-1, axis=0),), "need a scale and a dtype of integers"),
    ],
)
def test_a_slot_that_does_not_fit_is_refused(slots: tuple[EpilogueSlot, ...], message: str) -> None:
    operands = [GAIN] if any("gain" in dict(s.attributes) or s.op == "quant" for s in slots) else []
    with pytest.raises(hx.Error, match=message):
        of_layer("anec.convolution", [X, W, None, *operands], (1, 3), **PAD, epilogue=slots)


@pytest.mark.parametrize(
    ("attrs", "shape", "message"),
    [
        ({}, (5, 3, 3), "need 4 or 5 for both"),
        ({"kernel_sizes": (1, 1)}, (4, 3, 3, 3), r"kernel_sizes: got \(1, 1\).*need \(3, 3\)"),
        ({"groups": 2}, (4, 3, 3, 3), "groups: got 2 for 3 input channels"),
        ({"weights_layout": "hwio"}, (4, 3, 3, 3), "need one of oihw"),
        ({}, (4, 3, 9, 9), "need at least 9 for the kernel to fit"),
    ],
)
def test_a_convolution_checks_what_listing_22_2_says(
    attrs: dict[str, Any], shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(hx.Error, match=message):
        of_layer("anec.convolution", [X, np.zeros(shape, np.float16)], **attrs)


def test_padding_styles_become_explicit_padding() -> None:
    graph = of_layer("anec.convolution", [X, W], strides=(2, 2), padding_style="tf_same")
    attrs = graph.outputs[0].value.node.attrs
    assert (attrs["padding_style"], attrs["explicit_padding"]) == ("explicit", (0, 1, 1, 1))
    assert graph.outputs[0].value.shape == (1, 4, 3, 3)
