"""Every example of the catalogue, compiled for the C99 runtime: it runs with the host's numbers, or its op is one of
those that are refused by name."""

import numpy as np
import pytest
from test_c99_promises import plan_of
from tests.support.cases import arrays, feeds, graph_of

import hexane as hx
from hexane.emit.c99_check import why_refused
from hexane.errors import Error
from hexane.graph import Graph
from hexane.ops import USER_OPS
from hexane.runtime.c99 import C99Model
from hexane.system.c99_library import own_library

NEAR = 1e-5  # of the largest number, in sums of another order
REFUSED = {
    *("acos", "acosh", "asin", "asinh", "atan", "atanh"),
    *("bernoulli", "dropout", "multinomial", "random", "random_normal", "random_uniform"),  # random numbers
    *("non_max_suppression", "non_zero", "unique"),  # outputs of a length that is known at run time
    *("affine", "grid_sample", "roi_align"),  # some in fp64
    *("cast", "decode_blocks", "dequantize"),  # to fp16
    *("col2im", "local_response_norm", "max_pool_gradient"),
}


def compiled(graph: Graph) -> tuple[hx.Model | None, str]:
    """The network, or why there is none."""
    try:
        net = hx.compile(graph, target="host", threads=1, memory=hx.Memory(runtime="c99"))
    except Error as error:
        return None, str(error)
    assert isinstance(net, hx.Model)
    return net, ""


@pytest.mark.parametrize("name", [name for name, op in USER_OPS.items() if op.cases])
def test_an_example_runs_with_the_hosts_numbers(name: str) -> None:
    op = USER_OPS[name]
    for case in op.cases:
        given = arrays(op, case)
        graph = graph_of(op, case, given)
        net, refusal = compiled(graph)
        if net is None:
            assert name in REFUSED, refusal
            assert refusal.startswith("[compile] runtime: got 'c99': step ")
            continue
        data = plan_of(net)
        assert why_refused(data) == ""
        all_fed = feeds(graph, given)
        fed = {port.name: all_fed[port.name] for port in net.inputs}
        results = net(fed)
        need = results if isinstance(results, dict) else {net.outputs[0].name: results}
        for port, got in C99Model(data, own_library())(fed).items():
            if got.dtype.kind != "f":
                assert np.array_equal(got, need[port])
                continue
            finite = np.isfinite(need[port])
            assert np.array_equal(got[~finite], need[port][~finite], equal_nan=True)
            top = np.abs(need[port][finite]).max(initial=1e-30)
            assert np.abs(got - need[port])[finite].max(initial=0) <= NEAR * top
