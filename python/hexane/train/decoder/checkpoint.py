"""Decoders in checkpoints of a Trainer: the checkpoint's notes hold the config, and its states are the
weights, or the adapters."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from hexane.errors import Error
from hexane.graph import Array
from hexane.importers.files import open_regular
from hexane.runtime.states import holds_states, read_states
from hexane.train.decoder.config import PARTS, LlamaConfig
from hexane.train.decoder.formats.model_file import config_of
from hexane.train.decoder.lora import Base, Lora, checked_adapters
from hexane.train.decoder.model import checked_weights
from hexane.train.notes import notes_in, read_notes

VERSION = 1
OF_PARTS = {one.name for one in PARTS}  # settings that a note has only if they differ from the Llama family's


def decoder_notes(config: LlamaConfig) -> dict[str, Any]:
    """Returns the note "decoder", which marks a Trainer's checkpoint as a decoder's."""
    plain = {name: value for name, value in asdict(config).items() if name not in OF_PARTS}
    return {"version": VERSION, **plain, **config.parts()}


def is_checkpoint(path: str | os.PathLike[str]) -> bool:
    """True if the first bytes identify a file of states or a plan. Raises Error if the file cannot be read."""
    if Path(path).is_dir():
        return False
    descriptor = open_regular(path, f"[train.load_llama] {os.fspath(path)}", "model")
    try:
        return holds_states(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Adapted:
    """A checkpoint of adapters: it has no base weights, only a reference to the base model."""

    config: LlamaConfig
    lora: Lora
    adapters: dict[str, Array]
    base: Base
    notes: dict[str, Any]


def lora_notes(lora: Lora, base: Base) -> dict[str, Any]:
    """Returns the note "lora" of a checkpoint of adapters."""
    return {"version": VERSION, **asdict(lora), "base": asdict(base)}


def holds_adapters(path: str | os.PathLike[str]) -> bool:
    """True if the notes say that a checkpoint holds adapters only. Raises Error if the file is no checkpoint."""
    try:
        return "lora" in read_notes(path)
    except Error as error:
        raise _of_decoder(path, error) from None


def read_checkpoint(path: str | os.PathLike[str]) -> tuple[LlamaConfig, dict[str, Array], dict[str, Any]]:
    """Returns the config, the trained weights, and all notes of a checkpoint.

    Raises Error if the file is damaged, is no checkpoint of a decoder, or holds adapters only.
    """
    where, states, notes, config = _opened(path)
    if "lora" in notes:
        base = _lora(notes["lora"], where)[1].path
        raise Error(
            f"{where}: got a checkpoint of adapters alone, need their base model, {base}, with this file as its"
            " adapters: `hexane generate BASE --lora CHECKPOINT`"
        )
    if missing := config.shapes().keys() - states.keys():
        raise Error(f"{where}: got no state {min(missing)!r}, need the weights of its config")
    try:
        return config, checked_weights(config, {name: states[name] for name in config.shapes()}), notes
    except Error as error:
        raise Error(f"{where}: {str(error).removeprefix('[train.llama] ')}") from None


def read_adapted(path: str | os.PathLike[str]) -> Adapted:
    """Returns the contents of a checkpoint of `hexane train --lora`. Raises Error for any other file, and for a damaged
    one."""
    where, states, notes, config = _opened(path)
    if "lora" not in notes:
        raise Error(f"{where}: got a checkpoint without adapters, need one that `hexane train --lora` wrote")
    lora, base = _lora(notes["lora"], where)
    names = lora.shapes(config)
    adapters = checked_adapters(where, config, lora, {name: states[name] for name in names if name in states})
    return Adapted(config, lora, adapters, base, notes)


def _opened(path: str | os.PathLike[str]) -> tuple[str, dict[str, Array], dict[str, Any], LlamaConfig]:
    where = f"[train.load_llama] {os.fspath(path)}"
    try:
        states = read_states(path)
        notes = notes_in(states)
    except Error as error:
        raise _of_decoder(path, error) from None
    return where, states, notes, _config(notes.get("decoder"), where)


def _of_decoder(path: str | os.PathLike[str], error: Error) -> Error:
    """Returns an error about a file of states, reworded as one about loading a decoder."""
    name = os.fspath(path)
    return Error(f"[train.load_llama] {name}: {str(error).removeprefix(f'[load_states] {name}: ')}")


def _lora(note: object, where: str) -> tuple[Lora, Base]:
    keys = {"version", "base", *(one.name for one in fields(Lora))}
    if not isinstance(note, Mapping) or note.keys() != keys or note["version"] != VERSION:
        raise Error(f"{where}: got a note about adapters of another form, need one that `hexane train --lora` wrote")
    base, targets = note["base"], note["targets"]
    texts = (
        isinstance(base, Mapping)
        and base.keys() == {"path", "sha256"}
        and all(isinstance(one, str) for one in base.values())
    )
    if not texts or not isinstance(targets, list):
        raise Error(f"{where}: got a note about adapters that is damaged, need one that `hexane train --lora` wrote")
    try:
        return Lora(note["rank"], note["alpha"], tuple(targets)), Base(**base)
    except Error as error:
        raise Error(f"{where}: {str(error).removeprefix('[train.Lora] ')}") from None


def _config(note: object, where: str) -> LlamaConfig:
    if not isinstance(note, Mapping):
        raise Error(f"{where}: got no checkpoint of a decoder, need one that `hexane train` wrote")
    if note.get("version") != VERSION:
        raise Error(f"{where}: version: got {note.get('version')!r}, need {VERSION}")
    sizes = {name: value for name, value in note.items() if name != "version"}
    known = {one.name for one in fields(LlamaConfig)} - OF_PARTS
    if sizes.keys() - OF_PARTS != known or not isinstance(sizes["tied"], bool):
        raise Error(f"{where}: got a config with {', '.join(sorted(sizes))}, need {', '.join(sorted(known))}")
    return config_of(where, **sizes)
