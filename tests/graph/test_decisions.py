"""Decisions: one record of what was decided, from the first pass to the program, and its printed forms."""

from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from hexane.graph.decisions import Decision
from hexane.passes.order import Pass
from hexane.pipeline import compile_graph, lower
from hexane.targets import load_target

HOST = load_target("host")
SEEN = Decision("retarget", "sin at net.py:1", "decomposed", "the chip has no sin", "guide ch14, measured")


def convolutions() -> hx.Graph:
    """What nearly every pass rewrites: images, a batch norm, an activation, a reshape that needs a copy."""
    x = hx.input("x", (1, 3, 8, 8))
    y = hx.relu(hx.conv(x, np.ones((4, 3, 3, 3), np.float32), pad=1))
    ones = np.ones(4, np.float32)
    y = hx.batch_norm(y, mean=ones, variance=ones, gamma=ones, beta=ones)
    return hx.graph({"y": hx.reshape(hx.transpose(y, perm=(0, 2, 3, 1)), shape=(1, -1))})


def test_every_pass_keeps_what_was_decided_before() -> None:
    for dtype in ("", "fp16"):  # HEXANE_VERIFY checks each pass
        assert (
            lower(convolutions().decided(SEEN), HOST, hx.Options(dtype=dtype, trim_output_transpose=True)).decisions[0]
            == SEEN
        )


def test_a_decision_is_no_part_of_what_a_graph_is_and_a_pass_that_runs_again_does_not_repeat_it() -> None:
    graph = convolutions()
    assert graph.decided(SEEN).decided(SEEN).decisions == (SEEN,)
    assert graph.decided(SEEN, SEEN).decisions == (SEEN, SEEN)  # two nodes of one line
    assert graph.decided(SEEN) == graph
    assert graph.decisions == ()


def test_a_pass_that_loses_a_decision_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(graph: hx.Graph, target: object) -> hx.Graph:
        return hx.Graph(graph.inputs, graph.outputs)

    monkeypatch.setattr("hexane.pipeline.passes", lambda *_: [Pass(forgets)])
    with pytest.raises(hx.Error, match=r"after forgets.*need them kept"):
        lower(convolutions().decided(SEEN), HOST)


def test_stages_add_theirs_behind_those_of_passes() -> None:
    program = compile_graph(convolutions().decided(SEEN), HOST, skip=frozenset({"channels_last"}))
    assert program.decisions[0] == SEEN
    copied = program.decisions[-1]
    assert (copied.stage, copied.verdict, copied.source) == ("place", "copy", "hexane")
    assert copied.node.startswith("reshape at test_decisions.py:")


def test_a_constant_that_is_too_large_to_fold_says_so() -> None:
    wide = hx.broadcast_to(hx.const(np.ones((1, 1), np.float32)), shape=(6000, 6000))
    decided = lower(hx.graph({"y": hx.input("x", (6000, 6000)) + wide}), HOST).decisions
    assert [str(d) for d in decided] == [
        f"fold: {wide.value.node.where}: kept: as a constant it would take 144000000 bytes (hexane)"
    ]


def test_a_program_prints_its_steps_memory_and_decisions(capsys: pytest.CaptureFixture[str]) -> None:
    net = hx.compile(convolutions().decided(SEEN))
    net.program.print()
    printed = capsys.readouterr().out
    assert printed == str(net.program)
    for part in ('program "graph" for host', "= conv(", "memory: arena", f"decided: {SEEN}"):
        assert part.replace('"', "") in printed.replace('"', "")


def test_a_streamed_program_prints_its_loop() -> None:
    x = hx.input("x", (1, 4, 32, 32))
    net = hx.compile(
        hx.relu(hx.conv(hx.max_pool(x, kernel_sizes=3), np.ones((4, 4, 3, 3), np.float32))), memory=hx.Memory(rows=1)
    )
    assert "times the next" in str(net.program)
    assert "ring of" in str(net.program)
    assert "axis 1 from" in str(net.program)


def test_a_dump_has_a_file_for_each_pass_that_can_be_read_back(tmp_path: Path) -> None:
    graph = convolutions().decided(SEEN)
    for older in ("00-graph.txt", "99-older.txt"):
        (tmp_path / older).write_text("of an earlier dump")
    (tmp_path / "notes.txt").write_text("not ours")
    net = hx.compile(graph, dump=tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names[:2] == ["00-graph.txt", "01-write_rows.txt"]
    assert names[-1] == "notes.txt"
    assert names[-2].endswith("-program.txt")
    assert "99-older.txt" not in names
    assert (tmp_path / names[-2]).read_text() == str(net.program)
    first = (tmp_path / "00-graph.txt").read_text()
    assert first.endswith(f"# {SEEN}\n")
    assert str(hx.parse(first, graph.constants())) == str(graph)
    assert "#" not in (tmp_path / "01-write_rows.txt").read_text().splitlines()[-1]


def test_a_folder_without_a_dump_keeps_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "99-notes.txt").write_text("of the user")
    hx.compile(convolutions(), dump=tmp_path)
    assert (tmp_path / "99-notes.txt").read_text() == "of the user"


def test_a_dump_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(hx.Error, match=r"\[dump\] .*file: .*need a folder"):
        hx.compile(convolutions(), dump=tmp_path / "file")
