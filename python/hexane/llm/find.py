"""Finds models by path, or by the name of a repository in the local Hugging Face cache."""

import os
import re
from pathlib import Path

from hexane.errors import Error
from hexane.importers.encoders.files import json_object
from hexane.importers.files import open_next_to, open_regular, read_all
from hexane.train.decoder.adapter_files import CONFIG as ADAPTERS
from hexane.train.trainer import checkpoint_in

REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
ANY = "a folder of Hugging Face or `hexane train`, a GGUF file"  # what `load` and most commands take
REVISION = re.compile(r"[0-9A-Za-z][\w.-]{0,127}", re.ASCII)


def find_model(model: str | os.PathLike[str], need: str = ANY) -> Path:
    """Returns the file or folder of a model. model: a path, a training's folder (its checkpoint), a folder with a
    single GGUF file, or a repository (`org/name`) in the local cache (its snapshot). Nothing is downloaded. need: the
    kinds of files and folders that errors ask for.

    The cache is HF_HUB_CACHE, or else the folder `hub` in HF_HOME, or else huggingface/hub in XDG_CACHE_HOME or in
    ~/.cache. Raises Error for a repository that is not in it, and for a snapshot with a link that leaves its
    repository.
    """
    path = Path(model)
    if path.exists():
        inside = checkpoint_in(path)
        return inside if not (path / "config.json").is_file() and inside.is_file() else _gguf_in(path)
    name = os.fspath(model)
    if not REPOSITORY.fullmatch(name) or ".." in name:
        raise Error(
            f"[llm.load] {name}: got no such path, need {need}, or a repository (org/name) in Hugging Face's local"
            " cache; nothing is downloaded"
        )
    return _gguf_in(_snapshot(name))


def _gguf_in(path: Path) -> Path:
    """Returns the only GGUF file of a folder without config.json, and other paths unchanged."""
    if not path.is_dir() or (path / "config.json").exists():
        return path
    files = sorted(one.name for one in path.iterdir() if one.suffix.lower() == ".gguf")
    if len(files) > 1:
        raise Error(f"[llm.load] {path}: got {', '.join(files[:8])}, need the path of one")
    if not files:
        if (path / ADAPTERS).is_file():
            base = json_object(path, ADAPTERS, f"[llm.load] {path}").get("base_model_name_or_path")
            named = f", {base[:200]}," if isinstance(base, str) and base else ""
            raise Error(
                f"[llm.load] {path}: got adapters (LoRA), need the model that they change{named} and --lora {path}"
            )
        raise Error(
            f"[llm.load] {path}: got a folder without a model, need config.json, a GGUF file or a checkpoint in it"
        )
    os.close(open_next_to(path, files[0], f"[llm.load] {path}"))
    return path / files[0]


def hub_cache() -> Path:
    """Returns the folder in which Hugging Face's libraries cache repositories."""
    if given := os.environ.get("HF_HUB_CACHE"):
        return Path(given).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "huggingface" / "hub"


def _snapshot(name: str) -> Path:
    cache = hub_cache()
    where = f"[llm.load] {name}"
    repository = cache / f"models--{name.replace('/', '--')}"
    reference = repository / "refs" / "main"
    if not reference.is_file():
        raise Error(
            f"{where}: got no such folder and no such repository in {cache}, need one of them:"
            f" `hf download {name}` gets a repository"
        )
    data = read_all(open_regular(reference, f"{where}: refs/main", "file"), where)
    revision = data[:200].decode("ascii", "replace").strip()
    if not REVISION.fullmatch(revision):
        raise Error(f"{where}: refs/main: got {revision[:80]!r}, need the name of a snapshot")
    snapshot = repository / "snapshots" / revision
    if snapshot.is_symlink() or not snapshot.is_dir():
        raise Error(f"{where}: got no folder snapshots/{revision}, need it: the download may be incomplete")
    _check_links(snapshot, Path(os.path.realpath(repository / "blobs")), where)
    return snapshot


def _check_links(folder: Path, blobs: Path, where: str) -> None:
    """Raises Error for a link to a missing file, or to a target outside `blobs`, the folder in which a cache stores
    files under their hashes."""
    for one in folder.iterdir():
        if not one.is_symlink():
            continue
        if Path(os.path.realpath(one)).parent != blobs:
            raise Error(f"{where}: {one.name}: got a link out of the repository, need a link to one of its blobs")
        if not one.exists():
            raise Error(f"{where}: {one.name}: got a link to a missing blob, need it: the download may be incomplete")
