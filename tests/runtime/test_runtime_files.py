"""Saving and loading: what is written where, and what becomes of models whose files change."""

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane import _core

X = np.float32([[1, -2, 3]])
W = np.arange(12, dtype=np.float32).reshape(4, 3)


def linear() -> hx.Model:
    net = hx.compile(hx.linear(hx.input("x", (1, 3)), hx.param("w", W)), threads=1)
    assert isinstance(net, hx.Model)
    return net


def large(path: Path, rows: int = 2000) -> hx.Model:
    """A saved model whose weights are many pages, of which a call reads every one."""
    w = np.ones((rows, 500), np.float32)
    net = hx.compile(hx.param("w", w) + hx.input("x", (500,)), threads=1)
    net.save(path)
    return net


# ---- what is saved ----


def test_save_writes_the_params_as_they_are_now(tmp_path: Path) -> None:
    net = linear()
    net.save(tmp_path / "old.hxp")
    for factor in (2, 3):
        net.update(w=factor * W)
        net.save(tmp_path / "new.hxp")
        np.testing.assert_array_equal(hx.load(tmp_path / "new.hxp", threads=1)(X), net(X))
        np.testing.assert_array_equal(net(X), X @ (factor * W).T)
    loaded = hx.load(tmp_path / "new.hxp", threads=1)
    loaded.update(w=5 * W)
    loaded.save(tmp_path / "new.hxp")
    np.testing.assert_array_equal(hx.load(tmp_path / "new.hxp", threads=1)(X), X @ (5 * W).T)
    np.testing.assert_array_equal(hx.load(tmp_path / "old.hxp", threads=1)(X), X @ W.T)


def test_save_writes_states_as_they_are_at_first(tmp_path: Path) -> None:
    log, x = hx.state("log", init=np.float32([7, 8])), hx.input("x", (2,))
    net = hx.compile(log + x, updates=[hx.write_state(log, x, np.int32(0))], threads=1)
    net(np.float32([1, 2]))
    net.save(tmp_path / "m.hxp")
    np.testing.assert_array_equal(hx.load(tmp_path / "m.hxp").read_state("log"), np.float32([7, 8]))
    np.testing.assert_array_equal(net.read_state("log"), np.float32([1, 2]))


def test_a_model_may_be_saved_over_the_file_it_came_from(tmp_path: Path) -> None:
    linear().save(tmp_path / "m.hxp")
    net = hx.load(tmp_path / "m.hxp", threads=1)
    net.update(w=-W)
    net.save(tmp_path / "m.hxp")
    np.testing.assert_array_equal(net(X), X @ -W.T)
    np.testing.assert_array_equal(hx.load(tmp_path / "m.hxp")(X), X @ -W.T)


def test_saves_while_a_param_changes_hold_one_or_the_other_whole(tmp_path: Path) -> None:
    net = large(tmp_path / "m.hxp")
    stop = threading.Event()

    def change() -> None:
        value = 1.0
        while not stop.is_set():
            value = 3 - value
            net.update(w=np.full((2000, 500), value, np.float32))

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(10):
            net.save(tmp_path / "m.hxp")
            values = set(hx.load(tmp_path / "m.hxp", threads=1)(np.zeros(500, np.float32)).reshape(-1).tolist())
            assert values in ({1.0}, {2.0})
    finally:
        stop.set()
        thread.join()


def test_a_list_of_buffers_is_one_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    pieces = [b"head", np.arange(3, dtype="<u2"), b"", bytearray(b"end")]
    _core.save_file(str(path), pieces)
    assert path.read_bytes() == b"head" + bytes([0, 0, 1, 0, 2, 0]) + b"end"
    assert _core.file_has(str(path), pieces)
    assert not _core.file_has(str(path), pieces[:-1])
    with pytest.raises(hx.Error, match="contiguous"):
        _core.save_file(str(path), [b"new", np.zeros((4, 4))[:, ::2]])
    assert path.read_bytes().startswith(b"head")


# ---- where it goes ----


@pytest.mark.parametrize("write", [lambda p: linear().save(p), lambda p: _core.save_file(os.fsencode(p), b"new")])
def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path, write: Callable[[Path], None]) -> None:
    pipe, folder, link = tmp_path / "pipe", tmp_path / "folder", tmp_path / "link"
    os.mkfifo(pipe)
    folder.mkdir()
    link.symlink_to(pipe)
    for path, kind in ((pipe, "a pipe"), (link, "a pipe"), (folder, "a folder"), (Path("/dev/null"), "a device")):
        with pytest.raises(hx.Error, match=f"{path.name}: got {kind}, need a regular file"):
            write(path)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert link.is_symlink()
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "link", "pipe"]


def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    target, link, first = tmp_path / "deep" / "m.hxp", tmp_path / "link.hxp", tmp_path / "first.hxp"
    link.symlink_to("deep/m.hxp")
    first.symlink_to(link)
    for _ in range(2):  # the target is not there yet, then it is
        linear().save(first)
        assert first.is_symlink()
        assert link.is_symlink()
        assert not target.is_symlink()
        np.testing.assert_array_equal(hx.load(first)(X), X @ W.T)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["deep", "first.hxp", "link.hxp", "m.hxp"]


def test_links_in_a_circle_are_an_error(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.symlink_to(b)
    b.symlink_to(a)
    with pytest.raises(hx.Error, match="links"):
        linear().save(a)
    with pytest.raises(hx.Error, match="cannot open"):
        hx.load(a)


def test_a_path_with_a_zero_byte_is_not_cut_there(tmp_path: Path) -> None:
    for act in (linear().save, hx.load):
        with pytest.raises((hx.Error, ValueError), match=r"zero byte|null byte"):
            act(f"{tmp_path}/m.hxp\0.txt")
    assert not list(tmp_path.iterdir())


def test_paths_of_any_bytes_are_written_and_read(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.hxp")
    linear().save(path)
    np.testing.assert_array_equal(hx.load(path)(X), X @ W.T)
    with pytest.raises(hx.Error, match="caf"):
        hx.load(path + "x")


# ---- saves that are killed, and saves side by side ----

SAVING = """
import sys, threading
from hexane import _core
data = bytearray(1 << 20) * 400
print("now", flush=True)
while True:
    _core.save_file(sys.argv[1], data)
"""


def killed_while_saving(path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", SAVING, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    end = time.monotonic() + 30
    while not os.path.exists(f"{path}.part") and time.monotonic() < end:
        pass
    process.kill()
    process.wait()
    process.stdout.close()


def test_what_killed_saves_leave_behind_is_gone_after_the_next(tmp_path: Path) -> None:
    path = tmp_path / "m.hxp"
    linear().save(path)
    left = 0
    for _ in range(3):
        killed_while_saving(path)
        assert {p.name for p in tmp_path.iterdir()} <= {"m.hxp", "m.hxp.part"}
        left += len(list(tmp_path.iterdir())) - 1
    assert left, "no save was killed while it wrote"
    linear().save(path)
    assert list(tmp_path.iterdir()) == [path]
    np.testing.assert_array_equal(hx.load(path)(X), X @ W.T)


def test_a_file_that_looks_left_behind_is_replaced_whatever_it_is(tmp_path: Path) -> None:
    path, other = tmp_path / "m.hxp", tmp_path / "other"
    other.write_bytes(b"precious")
    for make in (lambda p: p.write_bytes(b"rest"), os.mkfifo, lambda p: os.link(other, p)):
        make(tmp_path / "m.hxp.part")
        linear().save(path)
        np.testing.assert_array_equal(hx.load(path)(X), X @ W.T)
    (tmp_path / "m.hxp.part").symlink_to(other)
    with pytest.raises(hx.Error, match=r"m.hxp.part: cannot open what is left"):
        linear().save(path)
    assert other.read_bytes() == b"precious"


def test_saves_to_one_path_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "file"
    failed: list[BaseException] = []

    def save(byte: int) -> None:
        try:
            for _ in range(30):
                _core.save_file(str(path), bytes([byte]) * 300_000)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=save, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if path.exists():
            data = path.read_bytes()
            assert data == data[:1] * 300_000
    for thread in threads:
        thread.join()
    assert not failed
    assert list(tmp_path.iterdir()) == [path]


# ---- files that change ----

CHANGES: dict[str, Callable[[Path], Any]] = {
    "truncate": lambda p: os.truncate(p, 0),
    "overwrite": lambda p: p.write_bytes(b"\xff" * p.stat().st_size),
    "remove": lambda p: p.unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_loaded_model_does_not_mind_what_becomes_of_its_file(tmp_path: Path, change: str) -> None:
    path = tmp_path / "m.hxp"
    large(path)
    net = hx.load(path, threads=1)
    CHANGES[change](path)
    assert (net(np.ones(500, np.float32)) == 2).all()
    net.update(w=np.zeros((2000, 500), np.float32))
    net.save(path)
    assert (hx.load(path, threads=1)(np.ones(500, np.float32)) == 1).all()


def in_time(act: Callable[[], Any]) -> None:
    """Runs it, and interrupts it if it waits."""

    def late(*_: object) -> None:
        raise TimeoutError

    old = signal.signal(signal.SIGALRM, late)
    signal.alarm(10)
    try:
        act()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize("act", [hx.load, hx.compile, hx.load_weights])
def test_reading_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, kind: str, act: Callable[..., Any]) -> None:
    path = tmp_path / "x.onnx"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path = Path("/dev/zero")
    with pytest.raises(hx.Error, match=r"regular file|got a folder|\.safetensors files"):
        in_time(lambda: act(path))
