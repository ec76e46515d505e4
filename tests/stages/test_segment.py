"""Segments: devices that let the fewest values cross, as few pieces as can be, cuts that say why; held against brute
force."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hexane as hx
from hexane.graph import Graph, Node, Value
from hexane.ops import LEAVES
from hexane.passes.retarget.marked import mark_programs
from hexane.pipeline import divide
from hexane.program import Segment
from hexane.stages.segments.devices import assign_devices
from hexane.stages.segments.program_size import program_bytes
from hexane.stages.segments.segment import segment
from hexane.targets.floors import op_unit
from hexane.targets.placement import placement
from hexane.targets.query import load_chip
from hexane.validate import judge

H13 = load_chip("h13")


@st.composite
def networks(draw: st.DrawFn, most: int = 9, alone: bool = False) -> Graph:
    """Ops that the engine takes, that only the host takes, and that only move elements, in any order."""
    pool = [hx.input("x", (4, 4))]
    for _ in range(draw(st.integers(1, most))):
        x = pool[draw(st.integers(0, len(pool) - 1))]
        kind = draw(st.sampled_from(["relu", "sinh", "transpose", "reshape", "add", "concat", *["attend"] * alone]))
        y = pool[draw(st.integers(0, len(pool) - 1))]
        match kind:
            case "relu":
                pool.append(hx.relu(x) if draw(st.booleans()) else hx.exp(x))
            case "sinh":
                pool.append(hx.sinh(x) if draw(st.booleans()) else hx.cosh(x))
            case "transpose":
                pool.append(hx.transpose(x, perm=(1, 0)))
            case "reshape":
                pool.append(hx.reshape(x, shape=x.shape[::-1]))
            case "add" if x.shape == y.shape:
                pool.append(x + y)
            case "concat" if x.shape[1:] == y.shape[1:] and x.shape[0] + y.shape[0] <= 16:
                pool.append(hx.concat(x, y, axis=0))
            case "attend" if len(x.shape) == 2:
                q = hx.reshape(x, shape=(1, 1, *x.shape))
                pool.append(hx.reshape(hx.scaled_dot_product_attention(q, q, q), shape=x.shape))
    read = {v for t in pool for v in t.value.node.inputs}
    ends = [t for t in pool if t.value not in read and t.value.node.op != "input"]
    return hx.graph({f"y{i}": t for i, t in enumerate(ends or pool[-1:])})


def computed(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes if n.op not in LEAVES]


def is_legal(node: Node) -> bool:
    return judge(node, H13).verdict in ("native", "decomposed")


def cost(nodes: Sequence[Node], on_host: Mapping[Node, bool]) -> tuple[int, int]:
    """The values that are read on another device, or before or behind an attention, and their bytes in fp16."""
    crossing: dict[Value, None] = {}
    for reader in nodes:
        for value in reader.inputs:
            if value is None or value.node.op in LEAVES:
                continue
            attention = "scaled_dot_product_attention" in (reader.op, value.node.op)
            if attention or on_host[reader] != on_host[value.node]:
                crossing[value] = None
    return len(crossing), sum(v.type.size * 2 for v in crossing)


@settings(max_examples=300, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.booleans().flatmap(lambda alone: networks(20, alone)))
def test_devices_let_as_few_values_cross_as_any_other_choice_would(graph: Graph) -> None:
    nodes = computed(graph)
    free = [n for n in nodes if is_legal(n) and op_unit(n.op) not in ("mac", "planar", "texture")]
    base = {n: not is_legal(n) for n in nodes}
    costs = {
        moved: cost(nodes, base | dict(zip(free, moved, strict=True)))
        for moved in product((False, True), repeat=min(len(free), 12))
        if len(free) <= 12
    }
    found = assign_devices(graph, H13)
    on_host = {n: found.device[id(n)] == "host" for n in nodes}
    assert all(on_host[n] for n in nodes if not is_legal(n))
    assert not any(on_host[n] for n in nodes if is_legal(n) and n not in free)
    if costs:
        best = min(costs.values())
        assert cost(nodes, on_host) == best
        # Of the best choices the one that leaves most to the engine.
        assert sum(on_host[n] for n in free) == min(sum(moved) for moved, c in costs.items() if c == best)


def fewest_pieces(graph: Graph, segments: Sequence[Segment]) -> int:
    """The shortest sequence of pieces, tried out: each takes all that is ready on its device, or one attention."""
    device = {n: s.device for s in segments for n in s.nodes}
    nodes = computed(graph)
    alone = {n for n in nodes if n.op == "scaled_dot_product_attention"}
    states, pieces = {frozenset[Node]()}, 0
    while not any(len(done) == len(nodes) for done in states):
        states = {after for done in states for after in steps(nodes, device, alone, done)}
        pieces += 1
    return pieces


def steps(
    nodes: Sequence[Node], device: Mapping[Node, str], alone: set[Node], done: frozenset[Node]
) -> Iterable[frozenset[Node]]:
    def ready(node: Node, done: set[Node] | frozenset[Node]) -> bool:
        return node not in done and all(v is None or v.node.op in LEAVES or v.node in done for v in node.inputs)

    for kind in ("ane", "host"):
        taken = set(done)
        for node in nodes:
            if device[node] == kind and node not in alone and ready(node, taken):
                taken.add(node)
        if len(taken) > len(done):
            yield frozenset(taken)
    yield from (done | {node} for node in alone if ready(node, done))


def check(graph: Graph, segments: Sequence[Segment]) -> None:
    """Every node once, no segment reads a later one, an attention stands alone, ports are what crosses."""
    place = {id(n): s.index for s in segments for n in s.nodes}
    assert sorted(place) == sorted(id(n) for n in computed(graph))
    assert [s.index for s in segments] == list(range(len(segments)))
    for s in segments:
        read = {v for n in s.nodes for v in n.inputs if v is not None and v.node.op != "const"}
        outside = {v for v in read if place.get(id(v.node)) != s.index}
        assert {p.value for p in s.inputs} == outside
        assert all(p.source is None or p.source < s.index for p in s.inputs)
        assert {p.value for p in s.crossings} == {v for v in outside if v.node.op != "input"}
        assert len(s.nodes) == 1 or all(n.op != "scaled_dot_product_attention" for n in s.nodes)
        assert s.index == 0 or s.why
    readers: dict[Value, list[int]] = {}
    for s in segments:
        for port in s.crossings:
            readers.setdefault(port.value, []).append(s.index)
    for s in segments:
        assert all(port.readers == tuple(readers.get(port.value, ())) for port in s.outputs)


@settings(max_examples=200, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
@given(networks(20))
def test_pieces_are_as_few_as_brute_force_finds(graph: Graph) -> None:
    _, segments = divide(graph, H13)
    check(graph, segments)
    assert len(segments) == fewest_pieces(graph, segments)


@settings(max_examples=200, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
@given(networks(9, alone=True))
def test_hard_cuts_leave_sound_segments(graph: Graph) -> None:
    _, segments = segment(graph, H13)  # `retarget` writes attentions out
    check(graph, segments)
    assert len(segments) <= fewest_pieces(graph, segments) + 1


# ---- what users see ----


def weights(*shape: int) -> np.ndarray:
    return (np.arange(np.prod(shape)).reshape(shape) % 5 - 2).astype(np.float32)


def test_a_network_that_the_engine_takes_is_one_segment() -> None:
    x = hx.input("x", (1, 3, 8, 8))
    _, segments = divide(hx.graph({"y": hx.softmax(hx.flatten(hx.relu(hx.conv(x, weights(4, 3, 3, 3)))))}), H13)
    (only,) = segments
    assert (only.device, only.crossings, only.why) == ("ane", (), "")
    assert [(p.name, str(p.type), p.source) for p in only.inputs] == [("x", "fp16[1, 3, 8, 8]", None)]


def test_a_segment_names_all_that_it_reads() -> None:
    h = hx.relu(hx.input("x", (2, 3)))
    _, segments = divide(hx.graph({"y": hx.sinh(h) + h}), H13)
    assert [s.why for s in segments][-1] == "it reads what segments 0 and 1 compute"


def test_a_segment_of_the_host_names_the_op_and_the_rule() -> None:
    x = hx.input("x", (2, 3))
    graph, segments = divide(hx.graph({"y": hx.relu(hx.sinh(hx.relu(x)))}), H13)
    assert [s.device for s in segments] == ["ane", "host", "ane"]
    assert segments[1].why.startswith("sinh at test_segment.py:")
    assert segments[2].why == "it reads what segment 1 computes"
    assert [str(p.type) for s in segments for p in s.crossings] == ["fp16[2, 3]"] * 2
    assert [s.crossing_bytes for s in segments] == [0, 12, 12]
    (left,) = [d for d in graph.decisions if d.verdict == "host"]
    assert (left.stage, left.source) == ("segment", "guide app. A, measured")
    assert [d.verdict for d in graph.decisions].count("cut") == 2


def test_what_moves_elements_goes_where_fewer_values_cross() -> None:
    x = hx.relu(hx.input("x", (4, 6)))
    pieces = [hx.sinh(part) for part in hx.split(x, axis=0, split_sizes=(1, 3))]
    graph, segments = divide(hx.graph({"y": hx.exp(hx.concat(*pieces, axis=0))}), H13)
    assert [[n.op for n in s.nodes] for s in segments] == [["relu"], ["split", "sinh", "sinh", "concat"], ["exp"]]
    assert [n.op for n in segments[1].moved] == ["split", "concat"]
    assert [d.node.split()[0] for d in graph.decisions if d.verdict == "moved"] == ["split", "concat"]


def test_what_moves_elements_stays_where_nothing_is_saved() -> None:
    x = hx.transpose(hx.relu(hx.input("x", (4, 6))), perm=(1, 0))
    _, segments = divide(hx.graph({"y": hx.sinh(x)}), H13)
    assert [[n.op for n in s.nodes] for s in segments] == [["relu", "transpose"], ["sinh"]]


def test_the_smaller_value_crosses() -> None:
    x = hx.relu(hx.input("x", (4, 6)))
    _, segments = divide(hx.graph({"small": hx.sinh(x[:1]), "large": hx.sinh(hx.tile(x, reps=(2, 1)))}), H13)
    assert {n.op for n in segments[0].nodes} == {"relu"}  # one value for both
    _, segments = divide(hx.graph({"large": hx.sinh(hx.tile(x, reps=(2, 1)))}), H13)
    assert [n.op for n in segments[0].nodes] == ["relu"]
    _, segments = divide(hx.graph({"small": hx.sinh(x[:1])}), H13)
    assert [n.op for n in segments[0].nodes] == ["relu", "slice_by_size"]


def test_an_attention_is_cut_off_unless_it_is_written_out() -> None:
    q = hx.relu(hx.input("q", (1, 2, 4, 8)))
    fused = hx.graph({"y": hx.relu(hx.scaled_dot_product_attention(q, q, q))})
    graph, segments = segment(fused, H13)
    assert [[n.op for n in s.nodes] for s in segments] == [["relu"], ["scaled_dot_product_attention"], ["relu"]]
    assert {s.device for s in segments} == {"ane"}
    (cut,) = [d for d in graph.decisions if d.verdict == "cut" and "attention" in d.reason and d.source != "hexane"]
    assert cut.source == "guide ch22, decoded"
    graph, segments = divide(fused, H13)
    assert len(segments) == 1
    (written,) = [d for d in graph.decisions if d.verdict == "decomposed"]
    assert "a segment of its own" in written.reason
    assert written.source == "guide ch22, decoded"
    report = hx.preflight(fused, H13)
    assert [e.verdict.verdict for e in report.entries if e.node.op == "scaled_dot_product_attention"] == ["decomposed"]


def test_an_attention_alone_stays_fused() -> None:
    q = hx.input("q", (1, 2, 4, 8))
    _, segments = divide(hx.graph({"y": hx.scaled_dot_product_attention(q, q, q)}), H13)
    assert [[n.op for n in s.nodes] for s in segments] == [["scaled_dot_product_attention"]]


def test_an_op_that_only_a_netplist_has_is_cut_off() -> None:
    x = hx.relu(hx.input("x", (4, 6)))
    graph = hx.graph({"y": hx.relu(x), "i": hx.cast(hx.reduce_argmin(x, axis=1), dtype="fp32")})
    reasons = [s.why for s in segment(graph, H13)[1]]  # retarget has another form of it
    assert "h13 has reduce_argmin in an authored netplist only, which is a program of its own" in reasons
    assert not any("netplist" in s.why for s in divide(graph, load_chip("h16"))[1])


def test_no_segment_stands_before_and_behind_another() -> None:
    x = hx.input("x", (4, 4))
    a = hx.relu(x)
    b = hx.exp(hx.sinh(a)) + a  # the engine, the host, and the engine again, which needs both
    _, segments = divide(hx.graph({"y": b}), H13)
    assert [[n.op for n in s.nodes] for s in segments] == [["relu"], ["sinh"], ["exp", "add"]]


def test_what_is_needed_late_is_computed_late() -> None:
    x = hx.input("x", (4, 4))
    late = hx.relu(x * 2.0)
    _, segments = divide(hx.graph({"y": hx.exp(hx.sinh(hx.tanh(x))) + late}), H13)
    assert [len(s.crossings) for s in segments] == [0, 1, 1]


def test_who_reads_a_state_runs_before_who_overwrites_it() -> None:
    state = hx.state("s", init=np.zeros((4, 4), np.float32))
    written = hx.write_state(state, hx.relu(hx.input("x", (1, 4))), hx.const(np.int32(0)))
    graph = hx.graph({"y": hx.relu(hx.sinh(hx.exp(hx.cosh(state))))}, [written])
    _, segments = divide(graph, H13)
    place = {n.op: s.index for s in segments for n in s.nodes}
    assert place["cosh"] <= place["write_state"]


def test_ten_thousand_nodes_are_divided() -> None:
    rng = np.random.default_rng(3)
    pool = [hx.input("x", (4, 4))]
    while len(pool) < 10_000:
        x, y = pool[-1], pool[-1 - int(rng.integers(min(len(pool), 20)))]
        kind = int(rng.integers(5))
        move = hx.transpose(x, perm=(1, 0))
        pool.append((x + y, move, hx.relu(x), hx.sinh(x), hx.exp(x))[kind])
    graph = hx.graph({"y": pool[-1]})
    assert len(computed(graph)) > 8000
    check(graph, divide(graph, H13)[1])


def test_a_graph_without_ops_has_no_segments() -> None:
    assert divide(hx.graph({"y": hx.input("x", (2,))}), H13)[1] == ()


def test_programs_of_one_level_run_in_the_order_in_which_they_need_each_other() -> None:
    """The second one's sigmoid reads a weight alone, so that it comes first in the graph."""
    x = hx.input("x", (1, 8, 1, 16))
    first = hx.exp(hx.relu(x))
    second = hx.square(hx.sigmoid(hx.param("w", np.ones((1, 8, 1, 16), np.float32))) + first)
    ends = {"a": (x.value, first.value), "b": (first.value, second.value)}
    program = hx.compile(mark_programs(hx.graph({"y": second + 1.0}), ends), target="h13").program
    assert program is not None
    assert [[n.op for n in s.nodes] for s in program.segments] == [
        ["relu", "exp"],
        ["sigmoid", "add", "square"],
        ["add"],
    ]


@pytest.mark.filterwarnings("ignore::hexane.FallbackWarning")
def test_a_program_that_the_chip_refuses_is_part_of_the_host_s_work() -> None:
    """What reads it and what it reads lie on the host as well: all of it is one segment."""
    x = hx.input("x", (1, 8, 1, 16))
    first = hx.relu(x)
    begin = hx.exp(first) + 1.0
    inside = hx.tan(begin)
    ends = {"a": (x.value, first.value), "b": (begin.value, inside.value)}
    net = hx.compile(mark_programs(hx.graph({"y": inside * 2.0}), ends), target="h13")
    assert net.program is not None
    assert [s.device for s in net.program.segments] == ["ane", "host"]


def test_what_a_late_reader_needs_is_computed_late_as_a_whole() -> None:
    """Alone neither of the two moves: more bytes would cross between them."""
    first = hx.sinh(hx.input("x", (8, 64)))
    product_of_rows = hx.reduce_prod(hx.cosh(first), axes=1)
    last = hx.fmod(hx.sinh(hx.relu(first)), product_of_rows)
    _, segments = segment(hx.graph({"y": last}), H13)
    assert [[node.op for node in found.nodes] for found in segments] == [
        ["sinh"], ["relu"], ["sinh", "cosh", "reduce_prod", "fmod"],
    ]  # fmt: skip


def _limited(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    limited = replace(placement(), most_program_bytes=most)
    monkeypatch.setattr("hexane.stages.segments.segment.placement", lambda: limited)


def _blocks(count: int, width: int = 32) -> hx.Tensor:
    """Of two products each, of which one number for each row crosses between blocks, and many within."""
    rng = np.random.default_rng(1)

    def weight(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) / rows**0.5).astype(np.float32)

    h = hx.input("x", (4, width))
    for _ in range(count):
        inner = hx.relu(hx.matmul(h, weight(width, 4 * width)))
        h = hx.tanh(hx.matmul(inner, weight(4 * width, width)))
    return h


@pytest.mark.parametrize("target", ["M1", "h17s"])
def test_a_program_is_cut_below_the_size_that_systems_place(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = hx.graph(_blocks(8))
    whole = hx.compile(graph, target=target)
    assert whole.program is not None
    assert len(whole.program.segments) == 1
    block = 2 * 32 * 128 * 2
    _limited(monkeypatch, 3 * block + block // 2)
    cut = hx.compile(graph, target=target)
    assert cut.program is not None
    assert [program_bytes(s.nodes) // block for s in cut.program.segments] == [3, 3, 2]
    assert {port.type.shape for s in cut.program.segments for port in s.inputs} == {(4, 32)}
    assert "since macOS 27.0.1 a program with more than 56.0 KiB of weights runs on the CPU" in str(
        [d.reason for d in cut.program.decisions if d.verdict == "cut"]
    )
    x = np.random.default_rng(2).standard_normal((4, 32)).astype(np.float32)
    np.testing.assert_array_equal(cut(x), whole(x))


def test_an_op_above_the_size_is_a_program_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    _limited(monkeypatch, 100)
    report = hx.preflight(_blocks(1), "M1")
    assert report.segments is not None
    assert [s.device for s in report.segments] == ["ane", "ane"]


def test_a_weight_that_several_ops_read_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = np.ones((32, 32), np.float32)
    h = hx.input("x", (4, 32))
    for _ in range(6):
        h = hx.relu(hx.matmul(h, weight))
    _limited(monkeypatch, 32 * 32 * 2)
    report = hx.preflight(h, "M1")
    assert report.segments is not None
    assert len(report.segments) == 1
