"""Each pass: what it fires on, what it must leave alone, and that the graph still computes the same."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from compare import assert_close
from hexane.cli.passes_page import passes_in_order
from hexane.graph import Graph
from hexane.graph.printer import print_graph
from hexane.ops.reference import run_reference
from hexane.ops.verify import verify
from hexane.passes import order
from hexane.passes.fuse.fuse_bias import fuse_bias
from hexane.passes.fuse.fuse_epilogue import fuse_epilogue
from hexane.passes.layout.trim_output_transpose import trim_output_transpose
from hexane.passes.legalize.to_fp16 import to_fp16
from hexane.passes.legalize.to_fp16_where_held import to_fp16_where_held
from hexane.passes.legalize.use_bf16 import use_bf16
from hexane.passes.quantize.multiply_in_int8 import multiply_in_int8
from hexane.passes.simplify.fold_batch_norm import fold_batch_norm
from hexane.pipeline import lower
from pass_cases import FIRES, LEAVES
from pass_cases.graphs import (
    HOST,
    block,
    conv,
    image,
    normal,
    normed,
    random,
    restart,
)
from pass_cases.layout import selected


@pytest.fixture(autouse=True)
def _same_weights_in_whatever_order_tests_run() -> None:
    restart()


def feeds(graph: Graph) -> dict[str, np.ndarray]:
    values = np.random.default_rng(5)
    return {
        str(v.node.attrs["name"]): (
            values.integers(0, 256, v.shape).astype(v.dtype.numpy)
            if v.dtype.name in ("int8", "uint8")
            else values.uniform(-2, 2, v.shape).astype(v.dtype.numpy)
        )
        for v in graph.inputs
    }


def assert_same_meaning(before: Graph, after: Graph, loose: bool = False) -> None:
    want, got = run_reference(before, feeds(before)), run_reference(after, feeds(before))
    for name in want:
        if loose:
            found, wanted = (np.asarray(a, np.float64) for a in (got[name], want[name]))  # NumPy 1 has no bf16
            np.testing.assert_allclose(found, wanted, rtol=2e-2, atol=2e-2)
        else:
            assert_close(got[name], want[name])


@pytest.mark.parametrize("name", FIRES)
def test_a_pass_fires(name: str, golden: Callable[[str, str], None]) -> None:
    run, make = FIRES[name]
    before = hx.graph(make())
    after = run(before, HOST)
    assert print_graph(before) != print_graph(after)
    assert_same_meaning(before, after, loose=run in (multiply_in_int8, to_fp16, to_fp16_where_held, use_bf16))
    verify(after, "lowering", HOST)
    golden(f"passes/{name}", f"{print_graph(before, sources=False)}\n{print_graph(after, sources=False)}")


@pytest.mark.parametrize("name", FIRES)
def test_what_passes_make_of_a_graph_runs(name: str) -> None:
    before = hx.graph(FIRES[name][1]())
    want, got = run_reference(before, feeds(before)), hx.compile(before)(feeds(before))
    for port, array in (got if len(want) > 1 else {next(iter(want)): got}).items():
        assert_close(array, want[port])


@pytest.mark.parametrize("name", LEAVES)
def test_a_pass_leaves_alone(name: str) -> None:
    run, make = LEAVES[name]
    before = hx.graph(make())
    assert print_graph(run(before, HOST)) == print_graph(before)


def test_a_residual_goes_to_the_later_of_two_convolutions() -> None:
    x = image(4)
    first = conv(x, 4)
    graph = fuse_epilogue(hx.graph(selected(first + conv(conv(first, 4), 4))), HOST)
    (fused,) = [node for node in graph.nodes if node.attrs.get("epilogue")]
    assert graph.outputs[0].value.node.inputs == fused.values


def test_folding_a_batch_norm_leaves_the_weights_to_their_other_readers() -> None:
    x, weight, bias = image(), hx.const(normal(4, 3, 3, 3)), hx.const(normal(4))
    graph = hx.graph(
        [normed(hx.conv(x, weight, bias)), hx.relu(hx.conv(x, weight, bias)), hx.exp(weight), normed(bias, 0)]
    )
    folded = fold_batch_norm(graph, HOST)
    want, got = run_reference(graph, feeds(graph)), run_reference(folded, feeds(graph))
    np.testing.assert_array_equal(got["relu"], want["relu"])
    assert_same_meaning(graph, folded)


def test_two_batch_norms_of_one_convolution_both_stay() -> None:
    y = conv(image(), 4)
    graph = hx.graph([normed(y), normed(y)])
    assert print_graph(fold_batch_norm(graph, HOST)) == print_graph(graph)


def test_a_chain_of_scales_is_rounded_once() -> None:
    x, weight = hx.input("x", (1, 3)), normal(3, 4)
    scales = [random().uniform(0.5, 2, 4).astype(np.float32) for _ in range(5)]
    y = x @ weight
    for scale in scales:
        y = y * scale
    (weights,) = (
        n.data for n in fold_batch_norm(hx.graph(y), HOST).nodes if n.op == "const" and n.types[0].shape == (3, 4)
    )
    wide = weight * np.prod(np.array(scales, np.float64), axis=0)
    np.testing.assert_array_equal(weights, wide.astype(np.float32))


def test_folding_a_batch_norm_keeps_small_integers_exact() -> None:
    def whole(*shape: int) -> np.ndarray:
        return random().integers(-3, 4, shape).astype(np.float32)

    y = hx.conv(image(), whole(4, 3, 3, 3), whole(4), pad=1)
    scales = np.array([0.25, 1, 4, 16], np.float32)
    y = hx.batch_norm(y, whole(4), scales, whole(4) * 2, whole(4), epsilon=0.0) * 0.5
    graph = hx.graph(hx.relu(y))
    values = {"x": whole(1, 3, 6, 5)}
    folded = lower(graph, HOST)
    assert not any(node.op == "batch_norm" for node in folded.nodes)
    np.testing.assert_array_equal(run_reference(folded, values)["relu"], run_reference(graph, values)["relu"])
    np.testing.assert_array_equal(hx.compile(graph)(values), run_reference(graph, values)["relu"])


def test_outputs_lose_their_transposes(golden: Callable[[str, str], None]) -> None:
    y = hx.transpose(hx.transpose(block(), perm=(2, 0, 1)), perm=(0, 2, 1))
    graph = hx.graph({"inner": hx.relu(block("int32", "i")), "outer": y, "used": hx.exp(y)})
    trimmed = trim_output_transpose(graph, HOST)
    want, got = run_reference(graph, feeds(graph)), run_reference(trimmed, feeds(graph))
    np.testing.assert_array_equal(got["outer"].transpose(2, 1, 0), want["outer"])
    np.testing.assert_array_equal(got["used"], want["used"])
    golden(
        "passes/trim_output_transpose", f"{print_graph(graph, sources=False)}\n{print_graph(trimmed, sources=False)}"
    )


def test_trimmed_outputs_have_the_layout_they_were_computed_in() -> None:
    graph = hx.graph(hx.relu(conv(image(), 4)))
    plain, trimmed = hx.compile(graph), hx.compile(graph, trim_output_transpose=True)
    assert (plain.outputs[0].shape, trimmed.outputs[0].shape) == ((1, 4, 6, 5), (1, 6, 5, 4))
    assert len(trimmed.steps) < len(plain.steps)
    np.testing.assert_array_equal(trimmed(feeds(graph)).transpose(0, 3, 1, 2), plain(feeds(graph)))


def test_a_bias_is_moved_but_its_constant_stays_for_others() -> None:
    bias = hx.const(normal(4, 1, 1))
    graph = hx.graph([conv(image(), 4) + bias, hx.exp(bias)])
    fused = fuse_bias(graph, HOST)
    assert_same_meaning(graph, fused)


def test_the_page_of_passes_has_every_pass() -> None:
    headings = re.findall(r"^### (\w+)", passes_in_order(), re.MULTILINE)
    assert headings == [row.name for row in order.ORDER]


def test_every_pass_has_a_case_it_fires_on() -> None:
    with_tests_of_their_own = {
        "trim_output_transpose",
        "narrow_ports",
        "engine_ports",
        "round_attributes",
        "products_as_convolutions",
        "split_stalled_kernels",
    }
    wanted = {row.name for row in order.ORDER} - with_tests_of_their_own
    cases = {run.__name__ for run, _ in FIRES.values()}
    assert wanted <= cases, (
        f"{', '.join(sorted(wanted - cases))}: no case. Add `NAME: (the pass, a function that makes a graph it"
        " changes)` to FIRES of a file in tests/support/pass_cases, run pytest --update-golden, and read"
        " tests/golden/passes/NAME.txt"
    )


def test_every_pass_is_in_a_pipeline() -> None:
    """A pass is a function with the name of its file; mil_form runs a pipeline itself."""
    folder = Path(str(order.__file__)).parent
    files = [
        path for room in ("simplify", "fuse", "quantize", "layout", "legalize") for path in (folder / room).glob("*.py")
    ]
    found = {path.stem for path in files if f"\ndef {path.stem}(graph: Graph" in path.read_text(encoding="utf-8")}
    missing = found - {row.name for row in order.ORDER} - {"mil_form"}
    uses = "; ".join(f"{name}: {use}" for name, use in order.PIPELINES.items())
    assert not missing, (
        f"{', '.join(sorted(missing))}: in no pipeline. Give it a row in ORDER of {order.__file__}, with the pipelines"
        " in whose graphs "
        f'it finds its ops ({uses}); legal=True if "engine" is one and the pass need not change a graph'
    )
