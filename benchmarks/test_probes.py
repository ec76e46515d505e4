"""The probes of `hexane bench` under pytest-benchmark: the times of a call, a chain of convolutions and a product of
matrices."""

from collections.abc import Callable

import numpy as np
import pytest

import hexane as hx
from hexane.bench import Configuration, configurations
from hexane.bench.networks import NETWORKS
from hexane.bench.worker import FARTHEST

CHOSEN = [c for probe in ("dispatch", "peak", "int8") for c in configurations(probe, "cpu") if c.mode == "bound"]


@pytest.mark.parametrize("configuration", CHOSEN, ids=lambda c: f"{c.probe} {c.name} {c.dtype}")
def test_probe(configuration: Configuration, contest: Callable[..., None]) -> None:
    network = NETWORKS[configuration.network](configuration.dtype, 4, **configuration.sizes)
    net = hx.compile(network.graph, target="host", threads=1)
    output = np.zeros_like(net(network.inputs))
    call = net.bind(**network.inputs, **{net.outputs[0].name: output})
    call()
    assert np.linalg.norm(output - network.expected) <= FARTHEST * np.linalg.norm(network.expected)
    contest(f"{configuration.probe}, {configuration.name} {configuration.dtype} | 1 | -", "hexane", call)
