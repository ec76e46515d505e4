"""Several programs of one model in a folder: whatever interrupts `hexane emit`, what is there is the set of one
model."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from test_saved_pairs import CHIP, files, network, what_is_there

from hexane import _core
from hexane.emit.mil import emit_mil
from hexane.emit.netplist import emit_netplist
from hexane.errors import Error
from hexane.pipeline import engine_form
from hexane.runtime.emitted import save_programs

SETS = {1: (0, 2), 2: (0, 2, 4), 3: (2, 4)}  # the segments of a model i; each program gives i


def save(i: int, folder: Path, netplist: bool = False) -> dict[int, Path]:
    mil = emit_mil(network(i), CHIP)
    net = emit_netplist(engine_form(network(i), CHIP), CHIP, "net") if netplist else None
    return save_programs(dict.fromkeys(SETS[i], mil if net is None else net), folder)


def model_in(folder: Path, name: str = "model.mil") -> int:
    """The model that all programs in the folder are of, and no program is missing."""
    found = {int(p.parent.name.removeprefix("segment_")): what_is_there(p) for p in folder.glob(f"segment_*/{name}")}
    (i,) = set(found.values())
    assert tuple(sorted(found)) == SETS[int(i)]
    return int(i)


class Interrupted(Exception):
    """The end of the process: nothing tidies up behind it."""


def interrupted(i: int, folder: Path, step: int, patch: pytest.MonkeyPatch) -> bool:
    """Whether saving comes as far as that step, which changes something on the disk: there it ends."""
    left = [step]

    def counted(change: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            if left[0] == 0:
                raise Interrupted
            left[0] -= 1
            return change(*args, **kwargs)

        return call

    with patch.context() as p:
        for name in ("save_file", "exchange_folders"):
            p.setattr(_core, name, counted(getattr(_core, name)))
        for name in ("unlink", "rename", "mkdir"):
            p.setattr(Path, name, counted(getattr(Path, name)))
        p.setattr(shutil, "rmtree", counted(shutil.rmtree))
        try:
            save(i, folder)
        except Interrupted:
            return True
    return False


@pytest.mark.parametrize("netplist", [False, True])
def test_a_set_replaces_a_set_and_others_files_stay(netplist: bool, tmp_path: Path) -> None:
    out, name = tmp_path / "out", "net.plist" if netplist else "model.mil"
    save(1, out, netplist)
    (out / "notes.txt").write_text("mine")
    (out / "segment_2" / "model.hwx").write_text("mine")
    (out / "kept" / "segment_2").mkdir(parents=True)
    (out / "kept" / "segment_2" / name).write_text("mine")
    for i in (2, 2):
        paths = save(i, out, netplist)
        assert sorted(paths) == list(SETS[i])
        assert model_in(out, name) == i
        others = [out / "notes.txt", out / "segment_2" / "model.hwx", out / "kept" / "segment_2" / name]
        assert [p.read_text() for p in others] == ["mine"] * 3
        assert len(files(out)) == 3 + 2 * len(SETS[i])
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_an_interrupted_replacement_leaves_one_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And so does another one, on top of what the first has left; what somebody else had put there is never lost."""
    steps = 0
    while True:
        out = tmp_path / str(steps) / "out"
        save(1, out)
        (out / "segment_2" / "model.hwx").write_text("mine")
        ended = interrupted(2, out, steps, monkeypatch)
        assert model_in(out) in (1, 2)
        interrupted(2, out, steps // 2, monkeypatch)
        assert model_in(out) in (1, 2)
        save(2, out)
        assert model_in(out) == 2
        assert (out / "segment_2" / "model.hwx").read_text() == "mine"
        assert [p.name for p in out.parent.iterdir()] == ["out"]
        if not ended:
            break
        steps += 1
    assert steps > 10


def test_a_new_or_empty_folder_gets_all_programs_at_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(20):
        out = tmp_path / str(step) / "out"
        if step % 2:
            out.mkdir(parents=True)
        interrupted(1, out, step, monkeypatch)
        assert not out.exists() or not files(out) or model_in(out) == 1


def test_a_failure_leaves_the_old_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    save(1, out)
    whole, calls = _core.save_file, []

    def fails(*args: object, **kwargs: object) -> None:
        calls.append(args)
        if len(calls) == 3:
            raise Error("[file] cannot write: No space left on device")
        whole(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(_core, "save_file", fails)
    with pytest.raises(Error, match="No space left"):
        save(2, out)
    assert model_in(out) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_folders_that_cannot_be_replaced_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    save(1, out)
    monkeypatch.setattr(_core, "exchange_folders", lambda *_: False)
    with pytest.raises(Error, match=r"out: got a folder that cannot be replaced as a whole, need another"):
        save(2, out)
    assert model_in(out) == 1
    monkeypatch.chdir(out)
    with pytest.raises(Error, match="got the working folder, which several programs replace as a whole, need another"):
        save(2, Path())
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Error, match=r"\[emit\] .*file"):
        save(2, tmp_path / "file" / "out")


def test_a_file_in_the_place_of_a_program_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "segment_2").write_text("mine")
    with pytest.raises(Error, match="segment_2: got a file in the place of the programs, need another folder"):
        save(1, tmp_path / "out")
    assert (tmp_path / "out" / "segment_2").read_text() == "mine"


WRITER = """
    import sys
    from pathlib import Path
    sys.path[:0] = [sys.argv[1]]
    from test_saved_sets import SETS, CHIP, emit_mil, network, save_programs

    models = {i: dict.fromkeys(SETS[i], emit_mil(network(i), CHIP)) for i in (1, 2)}
    while True:
        for programs in models.values():
            save_programs(programs, Path(sys.argv[2]))
            print(flush=True)
"""


@pytest.mark.parametrize("kills", [2, pytest.param(40, marks=pytest.mark.slow)])
def test_a_killed_emit_leaves_one_set(kills: int, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", textwrap.dedent(WRITER), Path(__file__).parent, out]
    for i in range(kills):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            for _ in range(1 + i % 7):
                writer.stdout.readline()
            os.kill(writer.pid, signal.SIGKILL)
        assert model_in(out) in (1, 2)
