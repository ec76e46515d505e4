"""Models damaged in their bytes, or in what they say, end in a graph or in hexane.Error: no other exception, crash or
hang.

Each batch is imported by a process of its own, whose memory and processor time are bounded.
"""

import os
import random
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf.descriptor import FieldDescriptor
from onnx import TensorProto, helper, numpy_helper

from hexane.errors import Error
from hexane.importers.onnx import import_onnx

BATCH = 250
MEMORY = 4 << 30  # bytes of address space
SECONDS = 300


def seeds() -> list[onnx.ModelProto]:
    """Convolution with pooling and shapes, and a graph with a branch, a loop and a function."""
    w = numpy_helper.from_array(np.ones((2, 2, 3, 3), np.float32), "w")
    sizes = numpy_helper.from_array(np.array([1, 2, 5, 7]), "s")
    port = helper.make_tensor_value_info
    images = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1], group=1),
        helper.make_node("MaxPool", ["a"], ["b"], kernel_shape=[2, 2], strides=[2, 1]),
        helper.make_node("Resize", ["b", "", "", "s"], ["c"], mode="linear"),
        helper.make_node("Shape", ["c"], ["d"]),
        helper.make_node("Reshape", ["c", "d"], ["z"]),
    ]
    first = helper.make_graph(images, "g", [port("x", 1, [1, 2, 6, 6])], [helper.make_empty_tensor_value_info("z")],
                              [w, sizes])  # fmt: skip
    out = helper.make_empty_tensor_value_info
    branch = helper.make_graph([helper.make_node("Neg", ["x"], ["t"])], "t", [], [out("t")])
    other = helper.make_graph([helper.make_node("Abs", ["x"], ["e"])], "e", [], [out("e")])
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("Add", ["v", "x"], ["v_out"])], "b",
        [port("i", TensorProto.INT64, []), port("go", TensorProto.BOOL, []), port("v", 1, [4])], [out("go_on"), out("v_out")],
    )  # fmt: skip
    control = [
        helper.make_node("If", ["yes"], ["a"], then_branch=branch, else_branch=other),
        helper.make_node("Loop", ["three", "yes", "a"], ["b"], body=body),
        helper.make_node("f", ["b"], ["z"], domain="d", slope=0.5),
    ]
    known = [numpy_helper.from_array(np.array(True), "yes"), numpy_helper.from_array(np.array(3), "three")]
    second = helper.make_graph(control, "g", [port("x", 1, [4])], [out("z")], known)
    leaky = helper.make_node("LeakyRelu", ["p"], ["q"])
    leaky.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("d", 1)]
    function = helper.make_function("d", "f", ["p"], ["q"], [leaky], opsets[:1], ["slope"])
    return [
        helper.make_model(first, opset_imports=opsets[:1], ir_version=8),
        helper.make_model(second, opset_imports=opsets, functions=[function], ir_version=8),
    ]


def messages(message: Any) -> list[Any]:
    """The message and all within it."""
    found = [message]
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            found += [m for v in (value if field.is_repeated else [value]) for m in messages(v)]
    return found


NUMBERS = (0, 1, -1, 2, 7, 8, 127, 1 << 31, (1 << 63) - 1, -(1 << 63), float("nan"), float("inf"))


def change_structure(model: onnx.ModelProto, rng: random.Random) -> None:
    """Drops, doubles, swaps or replaces one field of one message."""
    message = rng.choice([m for m in messages(model) if m.ListFields()])
    field, value = rng.choice(message.ListFields())
    repeated = field.is_repeated
    kind = rng.choice(("clear", "change", "change", "change"))
    if kind == "clear":
        message.ClearField(field.name)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        if repeated:
            chosen = rng.randrange(len(value))
            value.add().CopyFrom(value[chosen]) if rng.random() < 0.5 else value.__delitem__(chosen)
    else:
        pool: tuple[Any, ...] = NUMBERS
        if field.type == FieldDescriptor.TYPE_STRING:
            pool = ("", "x", "z", "w", "Loop", "Reshape", "f", "d", "a" * 1000)
        elif field.type == FieldDescriptor.TYPE_BYTES:
            pool = (b"", b"\xff", b"linear", bytes(1000))
        new = rng.choice(pool)
        try:
            if repeated:
                value[rng.randrange(len(value))] = new
            else:
                setattr(message, field.name, new)
        except (TypeError, ValueError):
            message.ClearField(field.name)


def change_bytes(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 2, 8))):
        at = rng.randrange(len(data))
        kind = rng.randrange(3)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at] = rng.choice((0, 1, 2, 7, 127, 255))
        else:
            del data[at : at + rng.randrange(1, 9)]


def mutant(seed: int) -> bytes:
    rng = random.Random(seed)
    model = rng.choice(seeds())
    if rng.random() < 0.3:
        data = bytearray(model.SerializeToString())
        change_bytes(data, rng)
        return bytes(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        change_structure(model, rng)
    return model.SerializeToString()


def import_mutants(first: int, count: int) -> None:
    """The function that the process of one batch runs."""
    if "ASAN_OPTIONS" not in os.environ:  # AddressSanitizer reserves terabytes of addresses
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    for seed in range(first, first + count):
        print(f"seed {seed}", flush=True)
        try:
            import_onnx(mutant(seed))
        except Error:
            continue


def check_batch(first: int) -> None:
    command = [sys.executable, str(Path(__file__)), str(first), str(BATCH)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=4 * SECONDS)
    assert result.returncode == 0, (result.stdout.splitlines()[-1:], result.returncode, result.stderr)


def test_mutants_end_in_a_graph_or_an_error() -> None:
    check_batch(0)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(1, 21))
def test_many_mutants_end_in_a_graph_or_an_error(batch: int) -> None:
    check_batch(batch * BATCH)


if __name__ == "__main__":
    import_mutants(int(sys.argv[1]), int(sys.argv[2]))
