"""What no program of a device can have runs on the host, node by node, and says why."""

import numpy as np
import pytest

import hexane as hx
from hexane import _core
from on_a_device import compiled, feeds, outputs, weights


def left_to_the_host() -> dict[str, hx.Tensor]:
    """What the chip runs and no program of its engine can have, between ops that one has."""
    x, z, w = hx.input("x", (1, 4, 6, 8)), hx.input("z", (2, 4, 6, 8)), hx.input("w", (4, 4, 1, 1))
    i8 = hx.input("i8", (2, 1, 2, 1, 3), "int8")
    mask = hx.param("mask", weights(4, 6, 8) > 0)
    return {
        "gather": hx.gather(hx.relu(x), hx.input("places", (3,), "int64"), axis=2),
        "conv": hx.relu(hx.conv(hx.abs(z), w)),
        "dequantize": hx.abs(hx.dequantize(i8, np.float32(0.5))),
        "masked": hx.select(mask, x, hx.relu(x)) + 1.0,
    }


LEFT = {
    "gather": ("gather", "the engine cannot receive int64: int64[3] comes from outside the engine"),
    "conv": ("conv", "MIL cannot express it: got a weight that is computed and a batch of 2"),
    "dequantize": ("dequantize", "the engine cannot receive int8: int8[2, 1, 2, 1, 3] comes from outside the engine"),
    "masked": ("select", "the engine cannot receive bool: bool[4, 6, 8] comes from outside the engine"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_no_program_can_have_runs_on_the_host_alone(name: str, engine: _core.Device) -> None:
    op, reason = LEFT[name]
    graph = hx.graph({name: left_to_the_host()[name]})
    net, cpu = compiled(graph, device="ane"), compiled(graph, device="cpu")
    np.testing.assert_array_equal(outputs(net, feeds(graph))["y"], outputs(cpu, feeds(graph))["y"])
    assert net.program is not None
    assert [node.op for s in net.program.segments if s.device == "host" for node in s.nodes] == [op]
    assert any(s.device == "ane" for s in net.program.segments)
    said = [d for d in net.program.decisions if d.stage == "segment" and d.verdict == "host"]
    assert [d.node.partition(" at ")[0] for d in said] == [op]
    assert said[0].reason.startswith(reason)
    if name != "masked":  # memory of a device, which the CPU reads as it is kept
        assert cpu.program is not None
        assert said == [d for d in cpu.program.decisions if d.stage == "segment" and d.verdict == "host"]


def test_fallback_error_names_what_no_program_can_have(engine: _core.Device) -> None:
    for device in ("ane", "cpu"):
        with pytest.raises(
            hx.Error, match=r"1 of 3 ops runs on the CPU: conv at .*batch of 2.*; need ops that the engine takes"
        ):
            compiled(hx.graph(left_to_the_host()["conv"]), device=device, fallback="error")
