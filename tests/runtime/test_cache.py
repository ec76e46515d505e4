"""The cache: what is kept comes back whole or not at all, whoever writes beside it, and however a writer ends."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import hexane as hx
from hexane.runtime.cache import MAGIC, Cache, cache_key, find_cache

FILES = {"net.plist": b"<plist/>", "inner/data": bytes(range(256)), "empty": b""}


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "kept")


def only_file(cache: Cache) -> Path:
    ((_, _, path),) = cache.entries()
    return path


def test_files_come_back(cache: Cache) -> None:
    assert cache.get("k") is None
    assert cache.put("k", FILES)
    assert cache.get("k") == FILES
    assert cache.put("k", {"other": b"1"})
    assert cache.get("k") == {"other": b"1"}
    assert cache.put("k", {})
    assert cache.get("k") == {}


def test_keys_tell_apart_what_is_joined_alike() -> None:
    parts: list[tuple[str | bytes, ...]] = [("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), ("ab", b"c", "")]
    assert len({cache_key(*given) for given in parts}) == len(parts)
    assert cache_key("é", b"x") == cache_key("é".encode(), "x")


@pytest.mark.parametrize("cut", [0, 1, len(MAGIC), 39, 40, 47, 48, 60, -1, -256])
def test_a_partial_entry_is_a_miss_and_removed(cache: Cache, cut: int) -> None:
    cache.put("k", FILES)
    path = only_file(cache)
    path.write_bytes(path.read_bytes()[:cut])
    assert cache.get("k") is None
    assert cache.entries() == []


def test_a_changed_byte_anywhere_is_a_miss(cache: Cache) -> None:
    cache.put("k", FILES)
    path = only_file(cache)
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        assert cache.get("k") is None, at
        assert not path.exists()
    path.write_bytes(whole + b"\0")
    assert cache.get("k") is None


def test_what_is_no_entry_is_a_miss(cache: Cache, tmp_path: Path) -> None:
    (cache.folder / "k.kept").mkdir(parents=True)
    assert cache.get("k") is None
    (tmp_path / "file").write_bytes(b"")
    assert Cache(tmp_path / "file" / "kept").get("k") is None
    assert not Cache(tmp_path / "file" / "kept").put("k", FILES)


def test_the_entry_that_was_not_used_for_longest_makes_room(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 3500)
    for name in ("a", "b", "c"):
        assert cache.put(name, {"data": name.encode() * 1000})
    for seconds, name in enumerate(("c", "a", "b")):
        os.utime(tmp_path / f"{name}.kept", (1000 + seconds, 1000 + seconds))
    assert cache.get("c") is not None  # now the last used
    assert cache.put("d", {"data": b"d" * 1000})
    assert {name for name in "abcd" if cache.get(name)} == {"b", "c", "d"}
    assert sum(size for _, size, _ in cache.entries()) <= cache.limit


def test_what_is_larger_than_the_cache_is_not_kept_and_removes_nothing(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 3500)
    assert cache.put("a", {"data": b"a" * 1000})
    assert not cache.put("b", {"data": b"b" * 3500})
    assert cache.get("a")


def test_what_a_killed_writer_left_is_removed_and_what_a_live_one_writes_is_not(cache: Cache) -> None:
    cache.put("k", FILES)
    left, live = cache.folder / "old.kept.part", cache.folder / "new.kept.part"
    left.write_bytes(b"half")
    hold = (
        "import fcntl, os, sys; f = open(sys.argv[1], 'wb'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", hold, live], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout
        assert writer.stdout.readline() == b"\n"
        cache.put("l", FILES)
        assert (left.exists(), live.exists()) == (False, True)
        writer.communicate(b"\n")
    cache.put("m", FILES)
    assert not live.exists()


def test_clear_removes_entries_and_nothing_else(cache: Cache) -> None:
    cache.put("k", FILES)
    cache.put("l", FILES)
    (cache.folder / "notes.txt").write_text("mine")
    assert cache.clear() == 2
    assert [path.name for path in cache.folder.iterdir()] == ["notes.txt"]


def test_the_folder_is_the_users_unless_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEXANE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    found = find_cache()
    assert found is not None
    assert found.folder.is_relative_to(tmp_path)
    assert "hexane" in found.folder.name.lower()
    monkeypatch.setenv("HEXANE_CACHE_DIR", str(tmp_path / "there"))
    assert find_cache() == Cache(tmp_path / "there")
    assert find_cache(tmp_path / "here") == Cache(tmp_path / "here")
    assert find_cache(Cache(tmp_path, 5)) == Cache(tmp_path, 5)
    assert find_cache(False) is None
    monkeypatch.setenv("HEXANE_CACHE_DIR", "off")
    assert find_cache() is None


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for given in (tmp_path / "file", 5):
        with pytest.raises(hx.Error, match=r"\[cache\] got .*, need a folder"):
            hx.compile(hx.graph({"y": hx.relu(hx.input("x", (1, 2, 3, 4)))}), device=hx.Device(cache=given))  # type: ignore[arg-type]
    for limit in (-1, True, "2G"):
        with pytest.raises(hx.Error, match=r"\[cache\] limit: got .*, need a number of bytes"):
            hx.Cache(tmp_path, limit)  # type: ignore[arg-type]
    assert hx.Cache(str(tmp_path)) == hx.Cache(tmp_path)


# Two writers at once, of the same keys and of entries as large as half the cache, one of which is killed after a while.
WRITERS = """
    import os, random, signal, sys, time
    from pathlib import Path
    from hexane.runtime.cache import Cache

    cache, kills = Cache(Path(sys.argv[1]), 2_000_000), int(sys.argv[2])
    SIZES = {"small": 100, "large": 300_000, "huge": 900_000}

    def made(name, version):
        word = f"{name}:{version}:".encode()
        return {"a": word * (SIZES[name] // len(word)), "b": word}

    def write(seed):
        draw = random.Random(seed)
        while True:
            name = draw.choice(list(SIZES))
            cache.put(name, made(name, draw.randrange(1000)))

    def start(seed):
        child = os.fork()
        if child == 0:
            write(seed)
        return child

    draw, hits, misses = random.Random(0), 0, 0
    other = start(-1)
    try:
        for i in range(kills):
            child = start(i)
            time.sleep(draw.random() * 0.01)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            for name in SIZES:
                found = cache.get(name)
                if found is None:
                    misses += 1
                    continue
                hits += 1
                version = int(found["b"].split(b":")[1])
                assert found == made(name, version), (i, name)
    finally:
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)
    cache.put("small", made("small", 0))
    left = [path.name for path in cache.folder.iterdir() if path.suffix != ".kept"]
    print(hits, misses, left, sum(size for _, size, _ in cache.entries()) <= cache.limit)
"""


@pytest.mark.parametrize("kills", [40, pytest.param(400, marks=pytest.mark.slow)])
def test_a_killed_writer_never_leaves_a_corrupt_hit(tmp_path: Path, kills: int) -> None:
    command = [sys.executable, "-c", textwrap.dedent(WRITERS), tmp_path / "kept", str(kills)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    hits, _, *rest = result.stdout.split()
    assert int(hits) > kills
    assert rest == ["[]", "True"]
