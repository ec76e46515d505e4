"""A step whose params are updated in place gives the same bits row by row, within a budget, and with ports in the
arena."""

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Array


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
