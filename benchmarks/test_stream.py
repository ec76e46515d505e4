"""Networks streamed row by row next to the same network in whole tensors: time, and the bytes of the arena, printed in
the workload's name."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_whole_networks import model_path, random_feeds

import hexane as hx

NETWORKS = ("mobilenet_v2_035_96", "mobilenet_v2_100_224")


@pytest.mark.parametrize("contestant", ["hexane", "whole tensors"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("name", NETWORKS)
def test_network_streamed(
    name: str, rows: int, threads: int, contestant: str, contest: Callable[..., None], pytestconfig: Any
) -> None:
    path = model_path(name, pytestconfig.getoption("--models"))
    whole, streamed = (hx.compile(path, threads=threads, memory=hx.Memory(rows=r)) for r in (0, rows))
    assert isinstance(whole, hx.Model)
    assert isinstance(streamed, hx.Model)
    feeds = random_feeds(whole)
    np.testing.assert_array_equal(streamed(feeds), whole(feeds))
    share = streamed.memory["arena"] / whole.memory["arena"]
    call = (streamed if contestant == "hexane" else whole).bind(**feeds)
    contest(f"{name}, {rows} rows, {share:.2f} of arena | {threads} | -", contestant, call)
