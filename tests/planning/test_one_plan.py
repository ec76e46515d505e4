"""`hx.fit` and `hx.compile` ask one function for a plan: what fits for one fits for the other, in the same bytes."""

from functools import cache
from typing import Any

import pytest

import hexane as hx
from hexane.report.fit import Way
from networks import small_networks
from small_devices import SMALL_DEVICE_NETWORKS

WAYS: dict[str, dict[str, Any]] = {
    "stream": {},
    "slow": {"slow": "1M"},
    "stages": {"slow": "1M", "strategy": "stages"},
    "held": {"hold_ports": True},
    "packed": {"compress": "lz4"},
    "c99": {"runtime": "c99"},
    "cmsis-nn held": {"runtime": "cmsis-nn", "hold_ports": True},
    "flash": {"flash": "64K", "slow": "1M"},
}


@cache
def models() -> dict[str, Any]:
    small = {name: small_networks()[name].SerializeToString() for name in ("unet", "detector")}
    return small | {name: SMALL_DEVICE_NETWORKS[name]() for name in ("residual", "keyword_spotting")}


@cache
def whole(name: str) -> int:
    net = hx.compile(models()[name], target="host", threads=1)
    assert isinstance(net, hx.Model)
    return net.memory["arena"] + net.memory["scratch"]


def made(name: str, memory: hx.Memory) -> hx.Model | str:
    """The compiled model, or why there is none."""
    try:
        net = hx.compile(models()[name], target="host", threads=1, memory=memory)
    except hx.Error as error:
        return str(error).removeprefix("[compile] memory: ").removeprefix("[compile] ")
    assert isinstance(net, hx.Model)
    return net


@pytest.mark.parametrize("part", [1, 3, 12])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["unet", "detector", "residual", "keyword_spotting"])
def test_fit_and_compile_make_the_same_plan(name: str, way: str, part: int) -> None:
    memory = hx.Memory(whole(name) // part, **WAYS[way])
    found, net = hx.fit(models()[name], memory=memory), made(name, memory)
    if isinstance(net, str):
        assert found.fits is False
        assert found.planned == net
        return
    assert found.fits is True
    assert isinstance(found.planned, Way)
    arenas = sum(size for name, size in net.memory.items() if name.startswith("arena"))
    beside = net.memory["scratch"] if memory.runs_on == "host" else found.inputs + found.outputs
    if memory.runs_on != "cmsis-nn":
        assert found.planned.total == arenas + beside
