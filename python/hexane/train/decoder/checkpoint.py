"""Decoders in checkpoints of a Trainer: its notes say the sizes, its states are the weights."""

import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from hexane.errors import Error
from hexane.graph import Array
from hexane.importers.files import open_regular
from hexane.runtime.states import holds_states, read_states
from hexane.train.decoder.config import LlamaConfig
from hexane.train.decoder.formats.model_file import config_of
from hexane.train.decoder.model import checked_weights
from hexane.train.notes import notes_in

VERSION = 1


def decoder_notes(config: LlamaConfig) -> dict[str, Any]:
    """The note under "decoder" that makes a Trainer's checkpoint one of a decoder."""
    return {"version": VERSION, **asdict(config)}


def is_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Whether that is a file of states, or a plan, as its first bytes say. Raises Error for a file that cannot be
    read."""
    if Path(path).is_dir():
        return False
    descriptor = open_regular(path, f"[train.load_llama] {os.fspath(path)}", "model")
    try:
        return holds_states(descriptor)
    finally:
        os.close(descriptor)


def read_checkpoint(path: str | os.PathLike[str]) -> tuple[LlamaConfig, dict[str, Array], dict[str, Any]]:
    """The config, the weights as they were trained, and all notes.

    Raises Error for a file that is damaged, and for one that is no checkpoint of a decoder.
    """
    where = f"[train.load_llama] {os.fspath(path)}"
    try:
        states = read_states(path)
        notes = notes_in(states)
    except Error as error:
        raise Error(f"{where}: {str(error).removeprefix(f'[load_states] {os.fspath(path)}: ')}") from None
    config = _config(notes.get("decoder"), where)
    if missing := config.shapes().keys() - states.keys():
        raise Error(f"{where}: got no state {min(missing)!r}, need the weights of its config")
    try:
        return config, checked_weights(config, {name: states[name] for name in config.shapes()}), notes
    except Error as error:
        raise Error(f"{where}: {str(error).removeprefix('[train.llama] ')}") from None


def _config(note: object, where: str) -> LlamaConfig:
    if not isinstance(note, Mapping):
        raise Error(f"{where}: got no checkpoint of a decoder, need one that `hexane train` wrote")
    if note.get("version") != VERSION:
        raise Error(f"{where}: version: got {note.get('version')!r}, need {VERSION}")
    sizes = {name: value for name, value in note.items() if name != "version"}
    known = {one.name for one in fields(LlamaConfig)}
    if sizes.keys() != known or not isinstance(sizes["tied"], bool):
        raise Error(f"{where}: got a config with {', '.join(sorted(sizes))}, need {', '.join(sorted(known))}")
    return config_of(where, **sizes)
