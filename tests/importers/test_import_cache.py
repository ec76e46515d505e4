"""Models in a Hugging Face cache, whose files are links to blobs; links that lead anywhere else are refused."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from safetensors.numpy import save_file

import hexane as hx
from hexane.importers.onnx import import_onnx

DATA = np.arange(16, dtype=np.float32)
OTHER = -DATA
READERS: dict[str, Callable[[Path], object]] = {
    "onnx": lambda folder: import_onnx(folder / "model.onnx"),
    "shards": hx.load_weights,
    "index": lambda folder: hx.load_weights(folder / "model.safetensors.index.json"),
}


def proto() -> onnx.ModelProto:
    """z = x + w, with w in model.bin."""
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[16], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="model.bin")
    x, z = helper.make_tensor_value_info("x", TensorProto.FLOAT, [16]), helper.make_empty_tensor_value_info("z")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["z"])], "g", [x], [z], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(params=["", "onnx", "deep/onnx"])
def snapshot(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder of a snapshot, its files links to blobs as the hub's client makes them; secrets outside the
    repository."""
    repository = tmp_path / "hub" / "models--org--name"
    folder = repository / "snapshots" / "0123abcd" / request.param
    folder.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "refs").mkdir()
    for name in ("1", "2", "3", "4"):
        (folder / {"1": "model.onnx", "2": "model.bin", "3": "a.safetensors", "4": "model.safetensors.index.json"}[name]
         ).symlink_to(os.path.relpath(repository / "blobs" / name, folder))  # fmt: skip
    (repository / "blobs" / "1").write_bytes(proto().SerializeToString())
    (repository / "blobs" / "4").write_text(json.dumps({"weight_map": {"w": "a.safetensors"}}))
    other = tmp_path / "hub" / "models--org--other" / "blobs"
    other.mkdir(parents=True)
    for place in (repository / "blobs", repository, repository / "refs", repository / "snapshots", tmp_path, other):
        (place / "2").write_bytes((DATA if place.name == "blobs" and place is not other else OTHER).tobytes())
        save_file({"w": DATA if place == repository / "blobs" else OTHER}, place / "3")
    return folder


@pytest.mark.parametrize("reader", READERS)
def test_links_to_the_blobs_of_their_repository_are_followed(snapshot: Path, reader: str) -> None:
    found = READERS[reader](snapshot)
    weight = found["w"] if isinstance(found, dict) else next(n.data for n in found.nodes if n.op == "const")
    np.testing.assert_array_equal(weight, DATA)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "target",
    ["{blobs}/2", "{up}blobs//2", "{up}blobs/./2", "./{up}blobs/2", "{up}../models--org--name/blobs/2"],
)
def test_a_link_to_a_blob_may_be_written_in_any_way(snapshot: Path, target: str, reader: str) -> None:
    repository = next(p for p in snapshot.parents if p.name == "models--org--name")
    up = os.path.relpath(repository, snapshot) + "/"
    name, file = ("model.bin", "2") if reader == "onnx" else ("a.safetensors", "3")
    (snapshot / name).unlink()
    (snapshot / name).symlink_to(target.format(up=up, blobs=repository / "blobs").replace("/2", f"/{file}"))
    found = READERS[reader](snapshot)
    weight = found["w"] if isinstance(found, dict) else next(n.data for n in found.nodes if n.op == "const")
    np.testing.assert_array_equal(weight, DATA)


def test_the_snapshot_may_be_named_by_a_relative_path_or_a_link(
    snapshot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(snapshot.parent)
    (snapshot.parent.parent / "short").symlink_to(snapshot)
    for path in (Path(snapshot.name), Path("..") / "short"):
        np.testing.assert_array_equal(hx.load_weights(path)["w"], DATA)
        import_onnx(path / "model.onnx")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "target",
    ["{up}2", "{up}refs/2", "{up}snapshots/2", "{up}../2", "{up}../models--org--other/blobs/2", "{up}blobs/../refs/2",
     "{up}blobs/deep/2", "{up}blobs/",
     "{up}blobs/..", "{up}blobs", "/dev/zero", "2", "{up}blobs/link", "{up}blobs/hard", "{up}blobs/pipe",
     "{up}blobs/folder", "{up}blobs/missing", "{up}../../../../../../../../etc/passwd"],
)  # fmt: skip
def test_links_that_lead_anywhere_else_are_refused(snapshot: Path, target: str, reader: str) -> None:
    repository = next(p for p in snapshot.parents if p.name == "models--org--name")
    blobs = repository / "blobs"
    (blobs / "deep").mkdir()
    (blobs / "folder").mkdir()
    for file in ("2", "3"):
        (blobs / "deep" / file).write_bytes((blobs / file).read_bytes())
        (snapshot / file).write_bytes((blobs / file).read_bytes())
    os.mkfifo(blobs / "pipe")
    name, file = ("model.bin", "2") if reader == "onnx" else ("a.safetensors", "3")
    (blobs / "link").symlink_to(repository / "refs" / file)
    os.link(repository / "refs" / file, blobs / "hard")
    (snapshot / name).unlink()
    up = os.path.relpath(repository, snapshot) + "/"
    (snapshot / name).symlink_to(
        target.format(up=up, blobs=blobs).replace("/2", f"/{file}").replace("..2", f"..{file}")
    )
    with pytest.raises(hx.Error, match=f"'{name}'(:| is) "):
        READERS[reader](snapshot)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "change", ["blobs is a link", "no models--", "no snapshots", "in no revision", "the folder is a link"]
)
def test_only_the_layout_of_the_cache_allows_links(snapshot: Path, change: str, reader: str, tmp_path: Path) -> None:
    repository = next(p for p in snapshot.parents if p.name == "models--org--name")
    if change == "blobs is a link":
        (repository / "blobs").rename(tmp_path / "elsewhere")
        (repository / "blobs").symlink_to(tmp_path / "elsewhere")
    elif change == "no models--":
        repository = repository.rename(repository.with_name("name"))
    elif change == "no snapshots":
        (repository / "snapshots").rename(repository / "checkouts")
    elif change == "in no revision":
        for file in snapshot.iterdir():
            (repository / "snapshots" / file.name).symlink_to(f"../blobs/{Path(os.readlink(file)).name}")
        return _refused(repository / "snapshots", reader)
    else:
        _named_inside(snapshot)
        return _refused(snapshot, reader, "link/model.bin", "link/a.safetensors")
    moved = tmp_path / "hub" / repository.name / ("checkouts" if change == "no snapshots" else "snapshots")
    _refused(moved / snapshot.relative_to(tmp_path / "hub" / "models--org--name" / "snapshots"), reader)


def _named_inside(snapshot: Path) -> None:
    """Files that are reached through a linked folder."""
    (snapshot / "real").mkdir()
    for name in ("model.bin", "a.safetensors"):
        (snapshot / name).rename(snapshot / "real" / name)
        target = os.readlink(snapshot / "real" / name)
        (snapshot / "real" / name).unlink()
        (snapshot / "real" / name).symlink_to(f"../{target}")
    (snapshot / "link").symlink_to("real")
    model = proto()
    model.graph.initializer[0].external_data[0].value = "link/model.bin"
    for name, content in (
        ("model.onnx", model.SerializeToString()),
        ("model.safetensors.index.json", json.dumps({"weight_map": {"w": "link/a.safetensors"}}).encode()),
    ):
        (snapshot / name).unlink()
        (snapshot / name).write_bytes(content)


def _refused(folder: Path, reader: str, *names: str) -> None:
    expected = "|".join(names or ("model.bin", "a.safetensors", "model.safetensors.index.json"))
    with pytest.raises(hx.Error, match=f"'({expected})': "):
        READERS[reader](folder)


@pytest.mark.parametrize("read", [import_onnx, hx.load_weights, hx.compile])
@pytest.mark.parametrize("kind", ["pipe", "/dev/zero", "/dev/null", "folder"])
def test_pipes_and_devices_are_refused_without_reading_them(
    kind: str, read: Callable[[Path], object], tmp_path: Path
) -> None:
    path = Path(kind) if kind.startswith("/") else tmp_path / "model.onnx"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    with pytest.raises(hx.Error, match=r"no regular file|got a folder|without .safetensors files"):
        read(path)
