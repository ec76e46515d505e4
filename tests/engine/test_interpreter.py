"""Random programs of chips return what the rules of their steps make of them one by one in NumPy, to the bit."""

import warnings

import numpy as np
import pytest

import hexane as hx
from engine_interpreter import interpreted
from random_graphs import KINDS, random_graph
from turns import share

CHIPS = ("h13", "h17s", "h18g")


def differences(seed: int, kind: str, chip: str) -> tuple[list[str], set[str]]:
    """The outputs that differ, and the kernels that were compared."""
    graph, feeds = random_graph(seed, kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = hx.compile(graph, target=chip, threads=1)
    assert isinstance(net, hx.Model)
    assert net.program is not None
    made = net(feeds)
    got = made if isinstance(made, dict) else {net.outputs[0].name: made}
    want, compared = interpreted(net.program, feeds)
    return [name for name in got if np.asarray(got[name]).tobytes() != want[name].tobytes()], compared


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_random_program_is_its_steps(kind: str, chip: str) -> None:
    rules: set[str] = set()
    for seed in range(4):
        wrong, compared = differences(seed, kind, chip)
        assert not wrong, (seed, wrong)
        rules |= compared
    assert len(rules) > 4, rules


@pytest.mark.slow
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("kind", KINDS)
def test_hundreds_of_random_programs_are_their_steps(kind: str, chip: str) -> None:
    for seed in share(range(100, 130)):
        wrong, _ = differences(seed, kind, chip)
        assert not wrong, (seed, wrong)
