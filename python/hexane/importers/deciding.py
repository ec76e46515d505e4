"""Finds inputs whose values decide shapes, in formats that do not mark them."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hexane.dtypes import DType
from hexane.errors import Error
from hexane.graph import Array, Graph
from hexane.importers.signature import SpecialisationNeeded

MOST_ROUNDS = 4
Import = Callable[[Mapping[str, Sequence[int]], Mapping[str, Array]], Graph]  # arguments: shapes and values of inputs


def deciding_inputs(graph: Import, inputs: Mapping[str, tuple[Sequence[int], DType]]) -> set[str]:
    """Returns the inputs whose values the importer needs to know for these shapes. Trial imports take ones as values.

    Errors of trial imports are ignored, because a later import raises them.
    """
    values: dict[str, Array] = {}
    for _ in range(MOST_ROUNDS):
        try:
            graph({name: shape for name, (shape, _) in inputs.items() if name not in values}, values)
        except SpecialisationNeeded as needed:
            asked = [name for name in needed.names if name in inputs]
            values |= {name: np.ones(inputs[name][0], inputs[name][1].numpy) for name in asked}
            continue
        except Error:
            pass
        break
    return set(values)
