"""`hexane emit` into a folder that has a program: whenever it is interrupted, text and weights there belong
together."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from hexane import _core
from hexane.emit.mil import emit_mil
from hexane.emit.netplist import emit_netplist
from hexane.errors import Error
from hexane.pipeline import engine_form
from hexane.runtime.emitted import save_mil, save_netplist
from hexane.targets.query import load_chip

CHIP = load_chip("h13")
X = np.ones((1, 32, 2, 2), np.float16)


def network(i: int) -> hx.Graph:
    """Whose weights and text both say i: a text with the other's weights gives another number."""
    w = np.full((32, 32, 1, 1), i / 32, np.float32)
    return hx.graph({"y": hx.conv(hx.input("x", X.shape, "fp16"), w.astype(np.float16)) * np.float16(10 * i)})


def as_mil(i: int, folder: Path) -> Path:
    return save_mil(emit_mil(network(i), CHIP), folder)


def as_netplist(i: int, folder: Path) -> Path:
    return save_netplist(emit_netplist(engine_form(network(i), CHIP), CHIP, "net"), folder)


Save = Callable[[int, Path], Path]
BOTH = pytest.mark.parametrize("save", [as_mil, as_netplist])
WEIGHTS = {as_mil: "weights/weights.bin", as_netplist: "weights.0"}


def what_is_there(path: Path) -> float:
    """i of the network in the folder; a fraction, or another number, for a pair that does not belong together."""
    y = np.unique(hx.compile(path, threads=1)(X))  # type: ignore[operator]
    assert y.size == 1
    return float(np.sqrt(float(y[0]) / 10))


def files(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


class Interrupted(Exception):
    """The end of the process, as far as files are concerned."""


def interrupted(save: Save, i: int, folder: Path, step: int, patch: pytest.MonkeyPatch) -> bool:
    """Whether saving comes as far as that step, which changes a file: there it ends."""
    left = [step]

    def counted(change: Callable[..., None]) -> Callable[..., None]:
        def call(*args: object, **kwargs: object) -> None:
            if left[0] == 0:
                raise Interrupted
            left[0] -= 1
            change(*args, **kwargs)

        return call

    with patch.context() as p:
        p.setattr(_core, "save_file", counted(_core.save_file))
        p.setattr(Path, "unlink", counted(Path.unlink))
        try:
            save(i, folder)
        except Interrupted:
            return True
    return False


@BOTH
def test_a_program_is_replaced_and_nothing_stays_of_the_way(save: Save, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    names = sorted([save(1, tmp_path).name, WEIGHTS[save], "notes.txt"])
    for i in (1, 2, 2, 3, 1):
        assert what_is_there(save(i, tmp_path)) == i
        assert files(tmp_path) == names
    assert (tmp_path / "notes.txt").read_text() == "mine"


@BOTH
def test_an_interrupted_replacement_leaves_a_pair(save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And so does another one, interrupted anywhere, on top of what the first has left."""
    save(1, tmp_path / "whole")
    assert interrupted(save, 2, tmp_path / "whole", 4, monkeypatch)
    assert not interrupted(save, 3, tmp_path / "whole", 5, monkeypatch)
    for first in range(6):
        for second in range(6):
            folder = tmp_path / f"{first}.{second}"
            path = save(1, folder)
            interrupted(save, 2, folder, first, monkeypatch)
            assert what_is_there(path) in (1, 2)
            interrupted(save, 3, folder, second, monkeypatch)
            assert what_is_there(path) in (1, 2, 3)
            save(4, folder)
            assert what_is_there(path) == 4
            assert files(folder) == sorted([path.name, WEIGHTS[save]])


@BOTH
def test_a_full_disk_leaves_the_old_pair_or_the_new_one(
    save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(1, tmp_path)

    def fails(*_: object, **__: object) -> None:
        raise Error("[file] cannot write: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(_core, "save_file", fails)
        with pytest.raises(Error, match="No space left"):
            save(2, tmp_path)
    assert what_is_there(path) == 1


@BOTH
def test_a_folder_that_cannot_be_made_is_named(save: Save, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Error, match=r"\[emit\] .*file.*: .*, need a folder that can be written to"):
        save(1, tmp_path / "file")


WRITER = """
    import sys
    from pathlib import Path
    sys.path[:0] = [sys.argv[1]]
    from test_saved_pairs import CHIP, emit_mil, network, save_mil

    programs = [emit_mil(network(i), CHIP) for i in (1, 2, 3)]
    while True:
        for program in programs:
            save_mil(program, Path(sys.argv[2]))
            print(flush=True)
"""


@pytest.mark.parametrize("kills", [2, pytest.param(40, marks=pytest.mark.slow)])
def test_a_killed_emit_leaves_a_pair(kills: int, tmp_path: Path) -> None:
    as_mil(1, tmp_path)
    command = [sys.executable, "-c", textwrap.dedent(WRITER), Path(__file__).parent, tmp_path]
    for i in range(kills):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            for _ in range(1 + i % 7):
                writer.stdout.readline()
            os.kill(writer.pid, signal.SIGKILL)
        assert what_is_there(tmp_path / "model.mil") in (1, 2, 3)
