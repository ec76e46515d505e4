"""Notes that a training's checkpoints carry: JSON in a state of bytes, which no step changes."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from hexane import build as hx
from hexane.build import Tensor
from hexane.errors import Error
from hexane.runtime import Model

NOTES = "notes"
MOST = 1 << 20  # bytes


def kept_notes(notes: Mapping[str, Any]) -> Tensor:
    """The update that makes the notes a state of a graph. Raises Error for what JSON cannot say."""
    try:
        data = json.dumps(notes, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise Error(f"[train.step] notes: {error}, need what JSON can say") from None
    if len(data) > MOST:
        raise Error(f"[train.step] notes: got {len(data)} bytes, need at most {MOST}")
    state = hx.state(NOTES, init=np.frombuffer(data, np.uint8), dtype="uint8")
    return hx.write_state(state, state, np.array(0))


def read_notes(net: Model) -> dict[str, Any]:
    """The notes of a training step, or of a checkpoint that was loaded; empty where there are none.

    Raises Error for a state of this name that is none.
    """
    if NOTES not in net.state_names:
        return {}
    state = net.read_state(NOTES)
    try:
        found = json.loads(state.tobytes()) if state.dtype == np.uint8 and state.size <= MOST else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Error(f"[train.read_notes] got a state {NOTES!r} that is no JSON object, need a checkpoint of a Trainer")
    return found
