"""Legalisation of layers: what each pass cuts or rewrites, what it leaves alone, and that the layers still compute the
same."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hexane as hx
from engine import run_layers
from hexane.graph import Array, Graph, Node, tensor_type
from hexane.graph.printer import print_graph
from hexane.ops import LEAVES
from hexane.ops.reference import run_reference
from hexane.ops.verify import verify
from hexane.passes.engine.legalize.compression import is_valid_for_compression
from hexane.passes.engine.legalize.kernels import exceeds_kernel_memory_limit, kernel_of
from hexane.passes.engine.legalize.split_transposes import is_valid_ne_transpose_configuration
from hexane.passes.engine.lower_segment import lower_segment
from hexane.targets import Chip, load_target


def chip(name: str) -> Chip:
    found = load_target(name)
    assert isinstance(found, Chip)
    return found


def whole(*shape: int) -> Array:
    return np.random.default_rng(7).integers(-1, 2, shape).astype(np.float16)


def lowered(made: Any, name: str = "h13") -> tuple[Graph, list[Node]]:
    """The layers, which are checked to compute the same."""
    graph = hx.graph(made)
    layers = lower_segment(graph, chip(name))
    verify(layers, "engine", chip(name))
    rng = np.random.default_rng(5)
    feeds = {str(v.node.attrs["name"]): rng.integers(-2, 3, v.shape).astype(v.dtype.numpy) for v in graph.inputs}
    want, got = run_reference(graph, feeds), run_layers(layers, feeds)
    for port, array in want.items():
        np.testing.assert_array_equal(got[port], array)
    return layers, [node for node in layers.nodes if node.op not in LEAVES]


def names(found: list[Node]) -> list[str]:
    return [node.op.removeprefix("anec.") for node in found]


def said(graph: Graph, stage: str) -> list[str]:
    return [f"{d.verdict}: {d.reason}" for d in graph.decisions if d.stage == stage]


def image(channels: int, size: int = 4) -> hx.Tensor:
    return hx.input("x", (1, channels, size, size), "fp16")


def test_a_part_without_elements_is_no_layer() -> None:
    empty, rest = hx.split(hx.input("x", (2, 4), "fp16"), axis=0, split_sizes=(0, 2))
    layers, found = lowered({"empty": empty, "rest": hx.relu(rest)})
    assert names(found) == ["neuron"]
    assert layers.outputs[0].value.node.op == "const"


# ---- kernel memory ----


@pytest.mark.parametrize(
    ("name", "stride", "shared", "limit"),
    [("h13", 1, False, 65536), ("h13", 2, False, 65536), ("h14", 1, True, 16 << 20), ("h14", 2, False, 65536), ("h17s", 1, True, 16 << 20)],
)  # fmt: skip
def test_kernel_memory_is_chosen_as_listing_35_2_says(name: str, stride: int, shared: bool, limit: int) -> None:
    """Shared memory needs a layer that may ask for it, and a chip whose compiler builds shared kernels."""
    _, found = lowered(hx.conv(image(8), whole(8, 8, 3, 3), pad=1, strides=stride), name)
    kernel = kernel_of(found[0], chip(name))
    assert (kernel.shared, kernel.limit) == (shared, limit)
    assert not exceeds_kernel_memory_limit(found[0], chip(name))


def test_kernels_of_a_core_are_counted_by_its_output_channels() -> None:
    _, found = lowered(hx.conv(image(16), whole(33, 16, 3, 3), pad=1), "h13")
    assert kernel_of(found[0], chip("h13")).demand == 3 * 16 * 9 * 2  # 33 channels on 16 cores: 3 on the first


def test_a_layer_with_too_many_weights_is_cut_along_its_output_channels() -> None:
    graph, found = lowered(hx.relu(hx.conv(image(128), whole(512, 128, 3, 3), whole(512), pad=1)))
    # 73,728 bytes of a core's 32 channels
    assert names(found) == ["convolution", "convolution", "concat"]
    assert [node.types[0].shape[1] for node in found] == [448, 64, 512]
    assert [len(node.attrs["epilogue"]) for node in found[:2]] == [2, 2]
    assert said(graph, "split_kernel_memory") == [
        "split: 73728 bytes of weights, the kernel memory of a core has 65536: 2 pieces of output channels"
    ]


def test_a_chip_with_shared_kernels_does_not_cut_it() -> None:
    _, found = lowered(hx.conv(image(128), whole(512, 128, 3, 3), pad=1), "h14")
    assert names(found) == ["convolution"]


def test_groups_stay_whole() -> None:
    _, found = lowered(hx.conv(image(64), whole(1024, 32, 7, 7), pad=3, groups=2))
    # A group of 512 channels does not fit either.
    assert [n for n in names(found) if n != "input_view"] == 2 * [*2 * ["convolution"], "concat"] + ["concat"]
    assert {node.attrs["groups"] for node in found if node.op == "anec.convolution"} == {1}


@pytest.mark.parametrize(("channels", "groups"), [(512, 1), (512, 2), (1024, 4), (2048, 2)])
def test_transposed_convolutions_are_cut_along_their_output_channels(channels: int, groups: int) -> None:
    weight = whole(channels, 256 // groups, 4, 4)
    model = hx.relu(hx.conv_transpose(image(channels), weight, whole(256), strides=2, pad=1, groups=groups))
    graph, found = lowered(model)
    pieces = [node for node in found if node.op == "anec.deconvolution"]
    assert len(pieces) > 1
    assert all(kernel_of(node, chip("h13")).demand <= kernel_of(node, chip("h13")).limit for node in pieces)
    assert [len(node.attrs["epilogue"]) for node in pieces] == [2] * len(pieces)
    assert "pieces of output channels" in said(graph, "split_kernel_memory")[0]


@pytest.mark.parametrize(("name", "bytes_"), [("h13", 2), ("h14", 1)])
def test_quantised_weights_take_the_room_they_are_stored_in(name: str, bytes_: int) -> None:
    """The M1 does not stream integers: they are fp16 in its memory."""
    q = hx.dequantize(hx.const(np.ones((512, 64, 3, 3), np.int8)), np.float32(0.5), dtype="fp16")
    _, found = lowered(hx.conv(image(64), q, pad=1, strides=2), name)
    assert names(found) == ["convolution"]
    assert kernel_of(found[0], chip(name)).demand == 32 * 64 * 9 * bytes_


def test_weights_that_may_change_are_cut_when_they_are_there() -> None:
    weight = hx.param("w", whole(512, 128, 3, 3))
    _, found = lowered(hx.conv(image(128), weight, whole(512), pad=1))
    assert names(found) == ["input_view", "convolution", "input_view", "convolution", "concat"]


def test_weights_of_one_channel_that_do_not_fit_are_cut_along_its_inputs() -> None:
    graph, found = lowered(hx.relu(hx.conv(image(4096, 2), whole(2, 4096, 3, 3), whole(2), pad=1)))
    assert names(found) == [
        "input_view",
        "convolution",
        "input_view",
        "convolution",
        "add",
        "gain_offset_control",
        "neuron",
    ]
    assert said(graph, "split_kernel_memory")[0].startswith("hazard: 73728 bytes of weights")


@pytest.mark.parametrize(
    ("bits", "name", "valid"), [(8, "h13", True), (16, "h13", True), (4, "h13", False), (8, "h11", False)]
)
def test_only_kernels_of_eight_bits_are_valid_for_compression(bits: int, name: str, valid: bool) -> None:
    assert is_valid_for_compression(bits, chip(name)) == valid


# ---- sizes of kernels ----


def test_a_wide_kernel_gets_an_even_width() -> None:
    graph, found = lowered(hx.conv(image(3, 16), whole(2, 3, 1, 9), pad=(0, 0, 4, 4)))
    assert found[0].attrs["kernel_sizes"] == (1, 10)
    assert found[0].attrs["explicit_padding"] == (0, 0, 4, 5)
    assert said(graph, "even_kernel_width") == ["rewritten: a kernel 9 wide runs as one 10 wide"]


def test_a_kernel_of_bytes_is_as_wide_as_one_of_fp16_at_most() -> None:
    """What the input is in decides: 14 would be refused."""
    weight = hx.dequantize(hx.const(np.ones((2, 3, 1, 13), np.int8)), np.float32(0.5), dtype="fp16")
    _, found = lowered(hx.conv(image(3, 16), weight))
    assert found[0].inputs[1].dtype.name == "int8"
    assert found[0].attrs["kernel_sizes"] == (1, 13)


@pytest.mark.parametrize(("width", "stride"), [(8, 1), (10, 1), (9, 2), (13, 1)])
def test_other_kernels_keep_their_width(width: int, stride: int) -> None:
    """13 is the widest of the chip, so that there is no 14."""
    _, found = lowered(hx.conv(image(3, 16), whole(2, 3, 1, width), strides=stride))
    assert found[0].attrs["kernel_sizes"] == (1, width)


@pytest.mark.parametrize(
    ("kernel", "attrs"),
    [
        ((1, 20), {}),
        ((31, 3), {}),
        ((2, 27), {"pad": (1, 0, 20, 3), "strides": (1, 2)}),
        ((1, 15), {"pad": (0, 0, 14, 1)}),
    ],
)
def test_a_kernel_beyond_the_chip_is_cut(kernel: tuple[int, int], attrs: dict[str, Any]) -> None:
    graph, found = lowered(hx.relu(hx.conv(image(2, 32), whole(3, 2, *kernel), whole(3), **attrs)))
    assert all(
        n.attrs["kernel_sizes"][1] <= 13 and n.attrs["kernel_sizes"][0] <= 29
        for n in found
        if n.op == "anec.convolution"
    )
    assert names(found)[-2:] == ["gain_offset_control", "neuron"]
    assert said(graph, "split_kernel")[0].startswith("hazard: a kernel of")


# ---- transposes and axes ----


def test_a_transpose_of_six_axes_in_which_some_stay_together_is_one_of_fewer() -> None:
    x = hx.reshape(hx.input("x", (1, 8, 4, 6), "fp16"), shape=(1, 8, 2, 2, 3, 2))
    graph, found = lowered(hx.reshape(hx.transpose(x, perm=(0, 1, 3, 5, 2, 4)), shape=(1, 32, 2, 3)))
    assert max(node.types[0].rank for node in found) <= 5
    assert [n for n in names(found) if n == "transpose"] == ["transpose"]
    assert said(graph, "split_transposes")


def test_a_transpose_of_six_axes_that_all_move_takes_several_passes() -> None:
    x = hx.reshape(hx.input("x", (6, 4, 30), "fp16"), shape=(2, 3, 2, 2, 5, 6))
    _, found = lowered(hx.reshape(hx.transpose(x, perm=(5, 4, 3, 2, 1, 0)), shape=(720,)))
    assert max(node.types[0].rank for node in found) <= 5
    assert names(found).count("transpose") > 1


def test_a_transpose_beyond_the_bound_is_done_in_pieces() -> None:
    """More elements than were seen to work on the M1."""
    graph, found = lowered(hx.transpose(hx.input("x", (1, 512, 64, 257), "fp16"), perm=(0, 2, 3, 1)))
    assert names(found) == ["input_view", "transpose", "input_view", "transpose", "concat"]
    assert said(graph, "split_transposes")


@pytest.mark.parametrize(
    ("shape", "perm", "valid"),
    [
        ((1, 4, 16384, 8), (0, 1, 3, 2), True),
        ((1, 4, 16385, 8), (0, 1, 3, 2), False),
        ((1, 16385, 4, 4), (0, 2, 3, 1), False),
        ((1, 2, 2, 2, 2, 2), (0, 1, 2, 3, 5, 4), False),
        ((1, 512, 64, 257), (0, 1, 3, 2), False),
    ],
)
def test_bounds_of_a_transpose_at_once(shape: tuple[int, ...], perm: tuple[int, ...], valid: bool) -> None:
    assert is_valid_ne_transpose_configuration(tensor_type("fp16", shape), perm, chip("h13")) == valid


def test_layers_that_treat_elements_alike_fold_their_axes() -> None:
    x = hx.reshape(hx.input("x", (6, 4, 30), "fp16"), shape=(2, 3, 2, 2, 5, 6))
    y = hx.relu(x) + hx.reshape(hx.input("y", (6, 4, 30), "fp16"), shape=(2, 3, 2, 2, 5, 6))
    _, found = lowered(hx.reshape(y, shape=(720,)))
    assert max(node.types[0].rank for node in found) <= 5


# ---- products ----


def test_a_product_whose_rows_exceed_the_working_set_is_sliced_along_them() -> None:
    x, y = hx.input("x", (4096, 512), "fp16"), hx.input("y", (512, 16), "fp16")
    graph, found = lowered(hx.relu(x @ y))
    assert names(found) == ["input_view", "matmul", "input_view", "matmul", "concat"]
    assert [node.types[0].shape for node in found if node.op == "anec.matmul"] == [(2048, 16)] * 2
    assert said(graph, "slice_matmul_along_height")[0].endswith("the working set has 2097152: 2 slices")


def test_a_product_within_the_working_set_is_left_alone() -> None:
    _, found = lowered(hx.input("x", (2048, 512), "fp16") @ hx.input("y", (512, 16), "fp16"))
    assert names(found) == ["matmul"]


# ---- as text ----

CUT: dict[str, Callable[[], Any]] = {
    "split_kernel_memory": lambda: hx.relu(hx.conv(image(128), whole(512, 128, 3, 3), whole(512), pad=1)),
    "split_kernel_memory_by_inputs": lambda: hx.conv(image(4096, 2), whole(2, 4096, 3, 3), whole(2), pad=1),
    "even_kernel_width": lambda: hx.conv(image(3, 16), whole(2, 3, 1, 9), pad=(0, 0, 4, 4)),
    "split_kernel": lambda: hx.relu(hx.conv(image(2, 32), whole(3, 2, 1, 20), whole(3))),
    "slice_matmul_along_height": lambda: hx.relu(hx.input("x", (4096, 512), "fp16") @ hx.input("y", (512, 16), "fp16")),
    "split_transposes": lambda: hx.reshape(
        hx.transpose(hx.reshape(hx.input("x", (6, 4, 30), "fp16"), shape=(2, 3, 2, 2, 5, 6)), perm=(5, 4, 3, 2, 1, 0)), shape=(720,)
    ),
    "fold_axes": lambda: hx.reshape(hx.relu(hx.reshape(hx.input("x", (6, 4, 30), "fp16"), shape=(2, 3, 2, 2, 5, 6))), shape=(720,)),
}  # fmt: skip


@pytest.mark.parametrize("name", CUT)
def test_what_a_cut_looks_like(name: str, golden: Callable[[str, str], None]) -> None:
    graph = hx.graph(CUT[name]())
    layers = lower_segment(graph, chip("h13"))
    decisions = [
        re.sub(r"test_\w+\.py:\d+", "model.py", str(d)) for d in layers.decisions if d.stage != "record_barriers"
    ]
    golden(
        f"engine/{name}", "\n".join([print_graph(graph, sources=False), print_graph(layers, sources=False), *decisions])
    )


# ---- what cannot be made legal ----


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: hx.relu(hx.input("x", (1, 1, 2, 20_000), "fp16")),
            "h13: got fp16.*its width needs to be at most 16384",
        ),
        (lambda: hx.softmax(hx.input("x", (2, 2, 2, 2, 2, 2), "fp16")), "with 6 axes, need at most 5"),
        (
            lambda: hx.tan(hx.input("x", (2,), "fp16")),
            "tan at .*which no layer of the engine computes, need it on another device",
        ),
    ],
)
def test_a_layer_that_the_chip_refuses_is_an_error(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(hx.Error, match=message):
        lower_segment(hx.graph(make()), chip("h13"))


def test_only_chips_have_layers() -> None:
    with pytest.raises(hx.Error, match="target: got 'host', need a chip"):
        lower_segment(hx.graph(hx.relu(hx.input("x", (2,), "fp16"))), load_target("host"))
