"""What compiling makes of every case of the catalogue, as short hashes: a refactoring leaves them alone.

After a change of behaviour `pytest tests/whole/test_unchanged.py --update-golden` renews the hashes and lists at the end
what changed; `git diff tests/golden/unchanged` shows the same.
"""

import base64
import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import hexane as hx
from cases import CASES, IDS, arrays, graph_of
from hexane import _core
from hexane.emit.plan import emit_plan
from hexane.graph import Graph
from hexane.graph.origins import source_scope
from hexane.runtime.mil import emit_pieces
from hexane.targets.query import load_chip
from stored_weights import stored_weights

TARGETS = ("host", "h12", "h13", "h17s")
KINDS = ("plan", "mil", "verdict")
CHARACTERS = 4  # of a hash in base64: 24 bits
GOLDEN = Path(__file__).parents[1] / "golden" / "unchanged"
SHOWN = 20  # differences in the message of a failure

pytestmark = pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")
Rows = dict[str, tuple[str, ...]]  # hashes of each case


def plan_of(graph: Graph, target: str) -> bytes:
    net = hx.compile(graph, target=target, threads=1, device="cpu")
    assert isinstance(net, hx.Model)
    assert net.program is not None
    return bytes(_core.plan_write(emit_plan(net.program)))


def mil_of(graph: Graph, target: str) -> bytes:
    """The text of each program and its weights."""
    _, pieces = emit_pieces(graph, load_chip(target))
    return b"".join(piece.mil.text.encode() + piece.mil.weights for piece in pieces if piece.mil is not None)


def verdict_of(graph: Graph, target: str) -> bytes:
    return hx.preflight(graph, target).to_json().encode()


MAKERS: dict[str, Callable[[Graph, str], bytes]] = {"plan": plan_of, "mil": mil_of, "verdict": verdict_of}


def short_hash(make: Callable[[Graph, str], bytes], graph: Graph, target: str) -> str:
    """Of what is made, or of the words with which it is refused."""
    try:
        made = make(graph, target)
    except hx.Error as error:
        made = str(error).encode()
    return base64.urlsafe_b64encode(hashlib.sha256(made).digest())[:CHARACTERS].decode()


@cache
def graphs() -> dict[str, Graph]:
    """By case. Sources are fixed, since plans and reports name them."""
    with source_scope("case"):
        cases = [(name, op, op.cases[i]) for name, (op, i) in zip(IDS, CASES, strict=True)]
        return {name: graph_of(op, case, arrays(op, case)) for name, op, case in cases} | dict(stored_weights())


def as_text(rows: Rows) -> str:
    return "".join(f"{name} {' '.join(hashes)}\n" for name, hashes in rows.items())


def as_rows(text: str) -> Rows:
    return {name: tuple(hashes) for name, *hashes in (line.split() for line in text.splitlines())}


def differences(before: Rows, after: Rows, kinds: tuple[str, ...]) -> list[str]:
    """A line for each case that differs: "conv-0: plan, mil"."""
    found = []
    for name in dict.fromkeys([*after, *before]):
        if name not in before or name not in after:
            found.append(f"{name}: {'new' if name in after else 'gone'}")
        elif changed := [kind for kind, a, b in zip(kinds, before[name], after[name], strict=True) if a != b]:
            found.append(f"{name}: {', '.join(changed)}")
    return found


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_made_of_every_case_is_as_it_was(
    target: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    monkeypatch.delenv("HEXANE_VERIFY")  # tests of ops have the same cases verified after each pass
    kinds = KINDS[:1] if target == "host" else KINDS
    after = {name: tuple(short_hash(MAKERS[kind], graph, target) for kind in kinds) for name, graph in graphs().items()}
    path = GOLDEN / f"{target}.txt"
    before = as_rows(path.read_text(encoding="utf-8")) if path.exists() else {}
    found = differences(before, after, kinds)
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(as_text(after), encoding="utf-8")
        record_property("changed", [f"{path.name}: {line}" for line in found])
        return
    more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    assert not found, "\n".join([f"{path} differs; if rightly so, pytest --update-golden:", *found[:SHOWN], *more])


def test_a_difference_names_its_case_and_kind() -> None:
    before: Rows = {"same": ("a", "b", "c"), "other": ("a", "b", "c"), "left": ("a", "b", "c")}
    after: Rows = {"same": ("a", "b", "c"), "other": ("a", "x", "y"), "added": ("a", "b", "c")}
    assert differences(before, after, KINDS) == ["other: mil, verdict", "added: new", "left: gone"]
    assert as_rows(as_text(after)) == after
