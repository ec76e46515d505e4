"""What planning adds to a program stays in the program: the target is the one that the user asked for."""

from typing import Any

import pytest

import hexane as hx
from hexane.targets import load_target
from networks import small_networks

WAYS: dict[str, dict[str, Any]] = {
    "stages": {"slow": "1G", "strategy": "stages"},
    "slow": {"slow": "1G"},
    "c99": {"runtime": "c99", "slow": "1G"},
    "two memories": {},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_plan_for_a_limit_leaves_the_target_alone(way: str) -> None:
    model = small_networks()["unet"].SerializeToString()
    whole = hx.compile(model, target="host", threads=1)
    assert isinstance(whole, hx.Model)
    most = (whole.memory["arena"] + whole.memory["scratch"]) * 3 // 4
    sram = f"{most}+{most}" if way == "two memories" else most
    net = hx.compile(model, target="host", threads=1, memory=hx.Memory(sram, **WAYS[way]))
    assert isinstance(net, hx.Model)
    assert net.program is not None
    assert net.program.target == load_target("host")
    assert net.program.runtime == WAYS[way].get("runtime", "host")
    assert {extent.space for extent in net.program.extents.values()} == set(net.program.spaces)
    assert way not in ("stages", "two memories") or set(net.program.spaces) != set(net.program.target.spaces)
