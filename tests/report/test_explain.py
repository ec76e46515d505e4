"""`hx.explain`: its numbers beside counts of their own, and the story of every node."""

import json
from dataclasses import replace

import numpy as np
import pytest
from tests.support.cases import arrays, graph_of

import hexane as hx
from hexane.graph import Graph
from hexane.graph.origins import source_scope
from hexane.graph.printer import size_text
from hexane.ops import USER_OPS
from hexane.ops.reference import run_reference
from hexane.pipeline import compile_graph
from hexane.program.layers import slot_text
from hexane.program.work import in_bytes, multiply_adds
from hexane.report.explain import HEAD, MEANINGS, PARTITION_HEAD, PARTITION_MEANINGS, Explanation, explain
from hexane.report.story import phase_of
from hexane.targets import load_target
from hexane.targets.query import load_chip


def named(name: str, build: object, *args: object, **attrs: object) -> hx.Tensor:
    with source_scope(name):
        made: hx.Tensor = build(*args, **attrs)  # type: ignore[operator]
    return made


def block(channels: int = 64, extent: int = 56, name: str = "block") -> Graph:
    """A block of a ResNet: what it reads goes around two convolutions."""
    weights = np.random.default_rng(0).standard_normal((2, channels, channels, 3, 3)).astype(np.float32) / channels
    x = named("stem", hx.relu, hx.input("x", (1, channels, extent, extent)))
    y = named("conv_1", hx.conv, x, weights[0], pad=1)
    y = named("conv_2", hx.conv, named("relu_1", hx.relu, y), weights[1], pad=1)
    return hx.graph(named("relu_2", hx.relu, named("sum", hx.add, y, x)), name=name)


def with_host() -> Graph:
    x = named("in", hx.relu, hx.input("x", (1, 8, 16, 16)))
    y = named("tangent", hx.tan, x)
    return hx.graph(named("out", hx.conv, y, np.ones((8, 8, 1, 1), np.float32)))


@pytest.fixture(scope="module", params=["h11", "h13", "h17s"])
def found(request: pytest.FixtureRequest) -> Explanation:
    return explain(block(), request.param)


def told(found: Explanation, wanted: str | int) -> str:
    return str(found.story(wanted))


# ---- numbers ----


def test_the_peak_is_the_most_that_any_layer_has_on_chip(found: Explanation) -> None:
    held = [0] * len(found.program.layers)
    for tensor in found.program.tensors:
        for stay in tensor.stays:
            for layer in stay.touches if stay.spilled else range(stay.first, stay.last + 1):
                held[layer] += stay.bytes
    assert [row.bytes for row in found.occupancy] == held
    assert (found.peak.bytes, found.peak.layer) == (max(held), held.index(max(held)))
    assert f"at most {size_text(max(held))} at once" in str(found)


def test_traffic_is_what_layers_move(found: Explanation) -> None:
    layers, traffic = found.program.layers, found.traffic
    assert traffic["loaded"] + traffic["stored"] + traffic["spilled"] == sum(
        layer.loaded + layer.stored for layer in layers
    )
    assert traffic["weights"] == 2 * (64 * 64 * 9) * 2
    assert sum(work.bytes for work in found.work) == sum(traffic.values())


def test_operations_of_a_block_are_its_products_and_elements(found: Explanation) -> None:
    of_kind = {"Conv": 2 * 56 * 56 * 64 * 64 * 9, "ElementWise": 2 * 56 * 56 * 64}
    for layer, work in zip(found.program.layers, found.work, strict=True):
        if layer.kind in of_kind:
            assert work.operations == of_kind[layer.kind]
    assert found.record()["operations"] == sum(work.operations for work in found.work)
    assert found.program.layers[found.dominant("operations")[0]].kind == "Conv"


@pytest.mark.parametrize(
    ("op", "shapes", "attrs"),
    [
        ("conv", [(2, 6, 9, 7), (4, 3, 3, 2)], {"groups": 2, "strides": (2, 1)}),
        ("conv", [(1, 3, 12), (5, 3, 4)], {}),
        ("conv_transpose", [(1, 6, 5, 4), (6, 2, 3, 3)], {"groups": 2, "strides": (2, 2)}),
        ("matmul", [(3, 4, 5), (5, 6)], {}),
        ("matmul", [(2, 5, 4), (2, 6, 5)], {"transpose_x": True, "transpose_y": True}),
    ],
)
def test_multiply_adds_are_the_sum_of_a_product_of_ones(op: str, shapes: list[tuple[int, ...]], attrs: dict) -> None:
    """Every product of two ones adds one to some element of the result, so all elements together are as many."""
    x, weight = hx.input("x", shapes[0]), np.ones(shapes[1], np.float32)
    graph = hx.graph(getattr(hx, op)(x, weight, **attrs))
    counted = run_reference(graph, {"x": np.ones(shapes[0], np.float32)})
    steps = compile_graph(graph, load_target("host")).steps
    assert sum(multiply_adds(step.node) for step in steps) == sum(out.sum() for out in counted.values())


@pytest.mark.parametrize(("kernel", "shapes", "attrs"), [
    ("sparse_conv", [(1, 32, 9, 7), (40, 32, 3, 2)], {"strides": (2, 1)}),
    ("sparse_matmul", [(3, 64), (64, 80)], {}),
])  # fmt: skip
def test_multiply_adds_without_zeros_are_those_of_the_whole_weight(
    kernel: str, shapes: list[tuple[int, ...]], attrs: dict
) -> None:
    x, weight = hx.input("x", shapes[0]), np.zeros(shapes[1], np.float32)
    weight[0] = 1
    graph = hx.graph(hx.conv(x, weight, **attrs) if kernel == "sparse_conv" else hx.matmul(x, weight))
    both = [hx.compile(graph, memory=hx.Memory(whole_weights=whole)).program.steps for whole in (False, True)]
    assert [kernel in [step.kernel for step in steps] for steps in both] == [True, False]
    without, of_whole = (sum(multiply_adds(step.node) for step in steps) for steps in both)
    assert without == of_whole > 0


def test_multiply_adds_of_attention_are_those_of_its_two_products() -> None:
    q, k, v = (hx.input(n, s) for n, s in (("q", (2, 4, 5, 8)), ("k", (2, 4, 7, 8)), ("v", (2, 4, 7, 3))))
    steps = compile_graph(hx.graph(hx.scaled_dot_product_attention(q, k, v)), load_target("host")).steps
    assert sum(multiply_adds(step.node) for step in steps) == 2 * 4 * (5 * 7 * 8 + 5 * 7 * 3)


@pytest.mark.parametrize("name", ["quantized_conv", "q31_conv", "quantized_matmul", "q31_matmul"])
def test_multiply_adds_of_integers_are_those_of_floats(name: str) -> None:
    of_conv = name.endswith("conv")
    shapes = [(2, 6, 9, 7), (4, 3, 3, 2)] if of_conv else [(3, 4, 5), (5, 6)]
    attrs: dict = {"groups": 2, "strides": (2, 1)} if of_conv else {}
    floats = hx.conv if of_conv else hx.matmul
    multiplier = np.int32(1 << 30) if name.startswith("q31") else np.float32(1)
    x, weight = hx.input("x", shapes[0], "int8"), np.ones(shapes[1], np.int8)
    graphs = (
        hx.graph(getattr(hx, name)(x, weight, multiplier, dtype="int8", **attrs)),
        hx.graph(floats(hx.input("x", shapes[0]), weight.astype(np.float32), **attrs)),
    )
    integers, of_floats = ([step.node for step in compile_graph(graph, load_target("host")).steps] for graph in graphs)
    assert sum(map(multiply_adds, integers)) == sum(map(multiply_adds, of_floats)) > 0
    assert [in_bytes(node) for node in integers if multiply_adds(node)] == [True]
    assert not any(map(in_bytes, of_floats))


@pytest.mark.parametrize("name", [name for name in USER_OPS if name.endswith(("conv", "matmul"))])
def test_every_form_of_a_product_is_counted(name: str) -> None:
    op = USER_OPS[name]
    graph = graph_of(op, op.cases[0], arrays(op, op.cases[0]))
    assert sum(map(multiply_adds, graph.nodes)) > 0


def test_json_holds_every_decision_and_record(found: Explanation) -> None:
    record = json.loads(found.to_json())
    program = found.program
    assert [d["reason"] for d in record["decisions"]] == [d.reason for d in program.decisions]
    assert [layer["name"] for layer in record["layers"]] == [layer.name for layer in program.layers]
    assert [t["stays"][0]["offsets"][0] for t in record["tensors"]] == [t.stays[0].offsets[0] for t in program.tensors]
    assert record["peak"]["bytes"] == found.peak.bytes


# ---- stories ----


def test_the_story_of_a_fused_activation(found: Explanation) -> None:
    story = found.story("relu_1")
    by_phase = {line.phase: line for line in story.lines}
    assert [found.program.layers[i].name for i in story.layers] == ["convolution at conv_1, relu_1"]
    assert by_phase["fusion"].verdict == "fused"
    assert by_phase["fusion"].reason == "post_activation of convolution at conv_1"
    assert by_phase["fusion"].source == "simple_activation; guide ch22, table 22.3"
    assert by_phase["retarget"].verdict == "native"
    assert "post_activation(mode=relu" in by_phase["layer"].reason


def test_the_story_of_a_sum_names_its_barrier(found: Explanation) -> None:
    text = told(found, "sum")
    assert "barrier: both operands are computed" in text
    assert "Must have 2 inputs when convert EW to GOC" in text


def test_the_story_of_a_layer_has_every_phase_with_what_the_records_say(found: Explanation) -> None:
    layer = next(layer for layer in found.program.layers if layer.kind == "Conv")
    story = found.story(layer.index)
    tensor = found.program.tensors[layer.makes[0]]
    assert found.program.tensors[layer.reads[0]].producer is not None
    words = {line.phase: f"{line.verdict}: {line.reason}" for line in reversed(story.lines)}
    assert list(dict.fromkeys(line.phase for line in story.lines if line.phase not in ("this CPU", "legalisation"))) == [
        "model", "retarget", "segment", "fusion", "layer", "order", "partition", "co-issue", "weights", "allocation",
        "banks", "chain", "main memory",
    ]  # fmt: skip
    assert f"partition {layer.partition}" in words["partition"]
    assert words["allocation"].startswith(tensor.allocation)
    assert f"offset {tensor.stays[0].offsets[0]} from layer" in str(story)
    assert f"bank conflicts turn 1 access into {tensor.conflicts}, " in words["banks"]
    assert tensor.not_chained in words["chain"]
    following = found.program.layers[layer.index + 1]
    assert words["co-issue"].startswith(
        f"alone: not started together with the next layer, {following.name}: both need the same kind"
    )
    assert f"{layer.weights.bytes if layer.weights else 0} bytes of weights" in words["weights"]
    assert all(line.source or line.phase in ("model", "segment") for line in story.lines)


def test_layers_of_one_name_have_their_own_decisions() -> None:
    """Weights beyond kernel memory are split: the pieces have one name, and other neighbours and sizes."""
    found = explain(block(320, 8), "h13")
    layers = found.program.layers
    assert len({layer.name for layer in layers if layer.kind == "Conv"}) < sum(layer.kind == "Conv" for layer in layers)
    for layer in layers:
        lines = {
            line.phase: line.reason for line in found.story(layer.index).lines if line.node == f"layer {layer.index}"
        }
        if layer.index + 1 < len(layers):
            other = layers[layer.index + 1 if layer.partner is None else layer.partner]
            assert other.name in lines["co-issue"]
            said = f"not started together with the next layer, {other.name}: the next layer waits for this one"
            assert (lines["co-issue"] == said) == (layer.co_issue == "one waits for the other")
        if layer.weights is not None:
            assert lines["weights"].startswith(f"{layer.weights.bytes} bytes of weights")
        assert lines["order"].startswith((layer.rule, f"by {layer.rule}"))
    assert "kernel memory of a core has 65536" in told(found, "conv_1")


def test_an_op_is_found_by_its_number_and_a_layer_by_its_own(found: Explanation) -> None:
    assert told(found, "op1").startswith("op1: conv at conv_1 -> ")
    assert found.story("op1").layers == found.story("conv_1").layers
    assert told(found, 1).startswith(f"layer 1: {found.program.layers[1].name}: ")


@pytest.mark.parametrize("wanted", ["99", "op99", "op", "-1", "conv_9", "", "\u0663"])
def test_a_node_that_is_not_there_is_an_error_with_near_names(wanted: str) -> None:
    with pytest.raises(
        hx.Error, match=r"--node: got .*, need the number of a layer below \d+, an op below op6, or a name.*conv_1"
    ):
        explain(block(), "h13").story(wanted)


def test_the_host_s_ops_say_why_they_are_there() -> None:
    found = explain(with_host(), "h13")
    text = told(found, "tangent")
    assert "no chip has a path for it" in text
    assert "segment 1: CPU" in text
    assert found.story("tangent").layers == ()
    assert found.host_operations == {1: 2 * 8 * 16 * 16}, "the tangent, and the cast in front of it"
    assert "segment 1: CPU, 1 op: 1 tan" in str(found)


def test_what_passes_take_in_has_no_layer_of_its_own() -> None:
    x = named("first", hx.relu, hx.input("x", (1, 4)))
    text = told(explain(hx.graph(named("second", hx.identity, x)), "h13"), "second")
    assert "none of its own: a pass before the lowering" in text


def test_a_model_without_sources_still_has_layers() -> None:
    found = explain(hx.parse("graph net (%x: fp32[1, 4])\n  %0 = relu(%x) : fp32[1, 4]\n  return y=%0\n"), "h13")
    assert "layer 0: Neuron" in told(found, 0)
    assert "the model names no source" in told(found, "op0")


def test_a_spilled_tensor_says_what_it_costs() -> None:
    found = explain(block(64, 128), "h13")
    spilled = [(t, stay) for t in found.program.tensors for stay in t.stays if stay.spilled]
    assert spilled
    for tensor, stay in spilled:
        layer = tensor.readers[0] if tensor.producer is None else tensor.producer
        assert f"tensor {tensor.index}: offset of a tile: {stay.offsets[0]} at layer {stay.touches[0]}" in told(
            found, layer
        )
        assert f"the tensor is spilled, {stay.cost} bytes of traffic more" in told(found, layer)


def test_a_written_state_says_why_it_is_no_ring_buffer() -> None:
    cache = hx.state("cache", (8, 16))
    after = hx.write_state(cache, hx.relu(hx.input("x", (8, 16))), hx.const(np.int32(0)))
    found = explain(hx.graph(hx.relu(after), [after]), "h13")
    (written,) = [t for t in found.program.tensors if t.allocation == "in place, main memory"]
    assert written.producer is not None
    assert "writes to a state do not wrap around, so it is no ring" in told(found, written.producer)
    assert not [t for t in found.program.tensors if t.allocation.startswith("ring")]


# ---- the whole ----


def test_the_optimal_order_prints_its_bound() -> None:
    found = explain(block(), "h13", schedule="optimal")
    assert "order: optimal: " in str(found)
    assert "the list scheduler needs" in told(found, "conv_1")


def test_text_has_a_row_for_each_layer_and_partition(found: Explanation) -> None:
    lines = str(found).splitlines()
    assert lines[0].startswith(f"block on {found.chip.title}, ")
    for layer in found.program.layers:
        assert any(line.split()[:2] == [str(layer.index), layer.kind] for line in lines)


def test_it_says_what_a_call_and_each_layer_take(found: Explanation) -> None:
    known = hx.estimate(found.graph, found.chip)
    assert f"latency: about {known.latency_us:.0f} us ({known.p10_us:.0f} to {known.p90_us:.0f} " in str(found)
    record = found.record()
    assert record["latency"]["latency_us"] == known.latency_us
    assert [(row["us"], row["bound"]) for row in record["layers"]] == [(x.us, x.bound) for x in known.layers]
    shown = [row[HEAD.index("us")] for row in found.rows() if row[0]]
    assert shown == [f"{layer.us:.1f}" for layer in known.layers]


def test_a_notebook_shows_names_as_text() -> None:
    html = explain(block(4, 4, "<script>"), "h13")._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt; on h13" in html


def test_wrong_targets_and_schedules_are_errors() -> None:
    with pytest.raises(hx.Error, match="'host', which is no chip"):
        explain(block(), "host")
    with pytest.raises(hx.Error, match="h99"):
        explain(block(), "h99")
    with pytest.raises(hx.Error, match="schedule: got 'fast', need one of apple, optimal"):
        explain(block(), "h13", schedule="fast")


def test_a_network_that_the_engine_computes_nothing_of_is_an_error() -> None:
    x = named("wave", hx.tan, hx.input("x", (1, 4)))
    with pytest.raises(hx.Error, match=r"of which no op runs on the engine: tan at wave \(no chip has a path for it"):
        explain(hx.graph(x), "h13")


def test_every_stage_has_a_phase() -> None:
    assert phase_of("simple_activation") == "fusion"
    assert phase_of("split_kernel_memory") == "legalisation"
    assert phase_of("lower") == "lowering"
    assert phase_of("fold") == "simplify"


def test_each_column_has_a_meaning_or_is_a_number_or_a_type() -> None:
    """A layer's or partition's number, its place and its result need no words."""
    named = {word.strip() for name in PARTITION_MEANINGS for word in name.split(",")}
    assert set(PARTITION_HEAD) - named == {"layers"}
    assert set(HEAD) - set(MEANINGS) == {"layer", "partition", "result"}


def test_the_legend_defines_the_allocations_in_use_alone() -> None:
    found = explain(hx.graph(hx.relu(hx.conv(hx.input("x", (1, 8, 16, 16)), np.ones((8, 8, 3, 3), "f"), pad=1))), "h13")
    assert {tensor.allocation for tensor in found.program.tensors} == {"streamed"}
    assert "streamed: in main memory" in found.legend
    assert "where: ops of the model that the layer comes from, not all of them" in found.legend
    assert "dependent:" not in found.legend
    assert found.legend in str(found)
    assert found.partition_legend in str(found)


def test_a_slot_names_the_inputs_of_its_layer() -> None:
    assert slot_text("gain_offset(gain=-1, offset=3)") == "gain_offset(no gain, offset=input 3)"
    assert slot_text("post_activation(mode=relu)") == "post_activation(mode=relu)"


def test_a_hypothesis_is_off_until_named_and_says_what_it_changes() -> None:
    graph = block()
    plain, supposed = explain(graph, "M1"), explain(graph, "M1", hypotheses=["chaining"])
    assert not any(tensor.allocation == "chained" for tensor in plain.program.tensors)
    chained = [tensor for tensor in supposed.program.tensors if tensor.allocation == "chained"]
    assert chained
    assert all(tensor.not_chained == "" for tensor in chained)
    assert all(len(tensor.readers) == 1 and tensor.readers[0] == tensor.producer + 1 for tensor in chained)
    (hypothesis, changes) = [line for line in supposed.lines if line.startswith(("hypothesis", "what it changes"))]
    assert "no source says whether M1 (h13) does" in hypothesis
    assert f"chained tensors 0 -> {len(chained)}" in changes
    record = supposed.record()
    assert (record["hypotheses"], record["without"]) == (["chaining"], plain.record())
    assert plain.record()["hypotheses"] == []
    assert "without" not in plain.record()


def test_a_hypothesis_that_is_named_twice_counts_once() -> None:
    once, twice = (explain(block(), "M1", hypotheses=["chaining"] * count) for count in (1, 2))
    assert twice.record() == once.record()


def test_only_what_no_source_states_is_a_hypothesis() -> None:
    with pytest.raises(hx.UnsupportedError, match="no op of a network needs one"):
        explain(block(), "M1", hypotheses=["ring_buffers"])
    with pytest.raises(hx.Error, match="need 'chaining'"):
        explain(block(), "M1", hypotheses=["winograd"])
    with pytest.raises(hx.Error, match=r"got the text 'chaining', need a list: \['chaining'\]"):
        explain(block(), "M1", hypotheses="chaining")
    chip = load_chip("M1")
    known = replace(chip, gates=replace(chip.gates, chaining=False))
    with pytest.raises(hx.Error, match="no hypothesis for M1"):
        explain(block(), known, hypotheses=["chaining"])
