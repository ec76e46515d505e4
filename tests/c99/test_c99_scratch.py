"""Scratch of kernels in the arena of a plan: it lies where nothing else is needed while its step runs."""

from typing import Any

import numpy as np
import pytest

import hexane as hx
from c99_apps import build_app, run_app, write_app
from hexane.emit.plan_view import PlanView
from hexane.emit.prepare import prepared
from hexane.emit.scratch import Gaps
from small_devices import SMALL_DEVICE_NETWORKS

POISON = """\
#include <string.h>
static void poison(void* context, uint32_t step, int axis, int32_t begin, int32_t end) {
  static const int places[] = {PLACES};
  (void)context, (void)axis, (void)begin, (void)end;
  if (places[step] >= 0) memset((char*)net_net.memory[SPACE].data + places[step], 0x5a, SIZE);
}
"""


@pytest.mark.parametrize("rows", [0, 1, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SMALL_DEVICE_NETWORKS)
@pytest.mark.parametrize("size", [pytest.param(16, marks=pytest.mark.slow), 300])
def test_scratch_meets_nothing_that_is_live(tmp_path, runtime_archive, name, rows, size):
    """The scratch of every step is overwritten before each of its runs."""
    net = hx.compile(SMALL_DEVICE_NETWORKS[name](), target="host", threads=1, memory=hx.Memory(rows=rows))
    write_app(net, tmp_path)
    view = PlanView(prepared((tmp_path / "net.hxp").read_bytes()))
    arena = [space.name for space in view.spaces].index("arena")
    gaps = Gaps(view.sections, [arena], view.item_bytes)
    found = [gaps.place(step, size, grows=False) for step in range(len(view.sections["steps"]))]
    assert any(place is not None for place in found)
    assert gaps.sizes == {arena: view.spaces[arena].bytes}
    places = ", ".join("-1" if place is None else str(place.offset) for place in found)
    head = POISON.replace("PLACES", places).replace("SPACE", str(arena)).replace("SIZE", str(size))
    main = (tmp_path / "app" / "main.c").read_text().replace("static int failed", f"{head}\nstatic int failed", 1)
    main = main.replace("  if (hx_run", "  net_net.hooks.trace = poison;\n  if (hx_run", 1)
    (tmp_path / "app" / "main.c").write_text(main)
    build_app(tmp_path, [runtime_archive])
    got, _, need = run_app(tmp_path, net)
    assert got == need


def sections(*tensors: tuple[int, int], steps: list[tuple[list[int], list[int]]], limit: int = 0) -> dict[str, Any]:
    """The tables of a plan with one arena of 100 bytes. tensors: offset and bytes; steps: tensors that are read and
    written."""
    operands = [id for reads, writes in steps for id in (*reads, *writes)]
    rows, first = [], 0
    for reads, writes in steps:
        rows.append(
            {
                "operands": first,
                "num_inputs": len(reads),
                "num_outputs": len(writes),
                "cut_axis": -1,
                "begin": 0,
                "end": 0,
            }
        )
        first += len(reads) + len(writes)
    views = [
        {"space": 0, "offset": at, "dtype": 0, "ring": 0, "rank": 1, "shape": [size], "strides": [1]}
        for at, size in tensors
    ]
    empty = {name: [] for name in ("loops", "moves", "inputs", "outputs", "blocks")}
    spaces = [{"bytes": 100, "limit": limit}]
    return {"tensors": views, "operands": np.array(operands), "steps": rows, "spaces": spaces, **empty}


CHAIN = [([], [0]), ([0], [1]), ([1], [2]), ([2], [0])]


@pytest.mark.parametrize(("step", "offset"), [(0, 48), (1, 80), (2, 0), (3, 48)])
def test_the_lowest_gap_beside_what_is_live(step, offset):
    """Bytes 0 to 40 are written in step 0, read in step 1, and written again in step 3: in step 2 they are free."""
    tables = sections((0, 40), (40, 40), (80, 16), steps=CHAIN)
    place = Gaps(tables, [0], {0: 1}).place(step, 16)
    assert place is not None
    assert place.offset == offset


def test_an_arena_without_a_gap_grows_as_far_as_it_may():
    tables = sections((0, 100), steps=[([], [0]), ([0], [])])
    gaps = Gaps(tables, [0], {0: 1})
    assert gaps.place(0, 16, grows=False) is None
    place = gaps.place(0, 16)
    assert place is not None
    assert (place.offset, gaps.sizes) == (112, {0: 128})
    limited = Gaps(sections((0, 100), steps=[([], [0]), ([0], [])], limit=127), [0], {0: 1})
    assert limited.place(0, 16) is None
    assert limited.sizes == {0: 100}


def test_bytes_that_are_only_partly_written_again_stay_live():
    """Step 1 writes the first half; the second is read behind it."""
    tables = sections((0, 32), (0, 16), steps=[([], [0]), ([], [1]), ([], [1]), ([0], [])])
    place = Gaps(tables, [0], {0: 1}).place(1, 16)
    assert place is not None
    assert place.offset == 32
