"""engine_ports: the ports of a graph as a program of the engine can hold them."""

import numpy as np
import pytest

import hexane as hx
from hexane.ops.reference import run_reference
from hexane.passes.legalize.engine_ports import engine_ports
from hexane.targets import load_target

H13 = load_target("h13")


def test_truths_pass_as_numbers_and_found_indices_as_uint16() -> None:
    mask, x = hx.input("mask", (4, 9), "bool"), hx.input("x", (4, 9), "fp16")
    values, indices = hx.topk(hx.select(mask, x, 0.0), k=3)
    graph = hx.graph({"v": values, "i": indices, "less": hx.less(x, 0.0), "mask_again": mask})
    after = engine_ports(graph, H13)
    assert {str(v.node.attrs["name"]): v.dtype.name for v in after.inputs} == {"mask": "fp16", "x": "fp16"}
    assert [p.value.dtype.name for p in after.outputs] == ["fp16", "uint16", "fp16", "fp16"]

    rng = np.random.default_rng(3)
    feeds = {"mask": rng.random((4, 9)) > 0.5, "x": rng.standard_normal((4, 9)).astype(np.float16)}
    want = run_reference(graph, feeds)
    got = run_reference(after, {**feeds, "mask": feeds["mask"].astype(np.float16)})
    for name, array in want.items():
        np.testing.assert_array_equal(got[name].astype(array.dtype), array, err_msg=name)


@pytest.mark.parametrize("rank", [0, 5])
def test_indices_of_axes_that_a_port_does_not_have_stay(rank: int) -> None:
    x = hx.input("x", (7,) if rank == 0 else (2, 1, 2, 1, 7), "fp16")
    graph = hx.graph(hx.reduce_argmax(x, axis=-1, keep_dims=rank > 0))
    assert engine_ports(graph, H13).outputs[0].value.dtype.name == "int32"


def test_a_graph_of_floats_is_left_alone() -> None:
    graph = hx.graph(hx.relu(hx.input("x", (3, 4))))
    assert engine_ports(graph, H13) is graph
