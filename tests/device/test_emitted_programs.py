"""Graph -> MIL text and weight file -> the stand-in's compiler -> surfaces: a program that is written wrongly computes
something else."""

from collections.abc import Callable

import numpy as np
import pytest

import hexane as hx
from hexane.build import Tensor
from mil_programs import program
from stand_in import StandIn, needs_stand_in


def fp16(name: str, *shape: int) -> Tensor:
    return hx.input(name, shape, dtype="fp16")


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float16)


GRAPHS: dict[str, Callable[[], Tensor | dict[str, Tensor]]] = {
    "conv": lambda: hx.relu(hx.conv(fp16("x", 1, 3, 9, 11), weights(8, 3, 3, 3), pad=1, strides=2)),
    "chain": lambda: hx.conv(hx.conv(fp16("x", 2, 4, 5, 7), weights(4, 4, 1, 1)), weights(6, 4, 1, 1)),
    "matmul": lambda: hx.softmax(fp16("rows", 6, 40) @ weights(40, 10)),
    "two outputs": lambda: {"z": fp16("x", 1, 3, 4, 5) * weights(1, 3, 1, 1), "a": hx.tanh(fp16("b", 1, 2, 3, 33))},
    "pool": lambda: hx.max_pool(fp16("x", 1, 5, 8, 8), kernel_sizes=(2, 2), strides=2),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_computes_the_same_on_the_device(name: str) -> None:
    needs_stand_in()
    stand_in = StandIn()
    outputs = GRAPHS[name]()
    graph = hx.graph(outputs)
    mil = program(graph)
    arrays = {
        value.name: np.random.default_rng(i).standard_normal(value.shape).astype(np.float16)
        for i, value in enumerate(hx.compile(graph).inputs)
    }
    want = hx.compile(graph, threads=1)(arrays)
    named = want if isinstance(want, dict) else {mil.outputs[0].user_name: want}

    ane = stand_in.open()
    files = {"weights/weights.bin": mil.weights} if mil.weights else {}
    handle = stand_in.compile(ane, mil.text, files)
    stand_in.load(handle)
    request = stand_in.bind(handle)
    ports = [port.name.decode() for port in stand_in.ports(handle)]
    assert ports == [port.name for port in (*mil.inputs, *mil.outputs)]
    for i, port in enumerate(mil.inputs):
        stand_in.write(request, i, arrays[port.user_name].tobytes())
    stand_in.evaluate(request)
    for i, port in enumerate(mil.outputs, len(mil.inputs)):
        data = stand_in.read(request, i, 2 * int(np.prod(port.shape)))
        np.testing.assert_array_equal(np.frombuffer(data, np.float16).reshape(port.shape), named[port.user_name])
    stand_in.library.hexane_ane_unbind(request)
    stand_in.free(handle)
    stand_in.library.hexane_ane_close(ane)
