"""Notes in a training's checkpoint: JSON as bytes in a state that no step changes."""

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from hexane import build as hx
from hexane.build import Tensor
from hexane.errors import Error
from hexane.graph import Array
from hexane.runtime import Model
from hexane.runtime.states import read_states

NOTES = "notes"
MOST = 1 << 20  # bytes


def kept_notes(notes: Mapping[str, Any]) -> Tensor:
    """Returns an update that adds the notes to a graph as a state. Raises Error if JSON cannot represent them, or if
    they take more than `MOST` bytes."""
    try:
        data = json.dumps(notes, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise Error(f"[train.step] notes: {error}, need values that JSON can represent") from None
    if len(data) > MOST:
        raise Error(f"[train.step] notes: got {len(data)} bytes, need at most {MOST}")
    state = hx.state(NOTES, init=np.frombuffer(data, np.uint8), dtype="uint8")
    return hx.write_state(state, state, np.array(0))


def read_notes(source: Model | str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the notes of a training step, or of a Trainer's checkpoint at that path; empty without notes.

    Only the notes are read from the file, and its checksum is not verified. Raises Error if the state "notes" is no
    JSON object, and if the file is no checkpoint.
    """
    if isinstance(source, Model):
        states = {NOTES: source.read_state(NOTES)} if NOTES in source.state_names else {}
    else:
        states = read_states(source, only=[NOTES])
    return notes_in(states)


def notes_in(states: Mapping[str, Array]) -> dict[str, Any]:
    """Returns the notes among the states of a step. Raises Error as `read_notes` does."""
    if NOTES not in states:
        return {}
    state = states[NOTES]
    try:
        notes = json.loads(state.tobytes()) if state.dtype == np.uint8 and state.size <= MOST else None
    except (ValueError, RecursionError):
        notes = None
    if not isinstance(notes, dict):
        raise Error(f"[train.read_notes] got a state {NOTES!r} that is no JSON object, need a checkpoint of a Trainer")
    return notes
