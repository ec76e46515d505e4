"""Random inputs of a network, for runs whose numbers do not matter."""

from collections.abc import Sequence

import numpy as np

from hexane.errors import Error
from hexane.graph import Array
from hexane.importers.likely_shapes import likely_shapes, shape_option
from hexane.runtime.model import PortType


def random_arrays(ports: Sequence[PortType], seed: int) -> dict[str, Array]:
    """Arrays for ports of fixed shapes: floats from the normal distribution; integers 0 or 1, which index any table of
    two rows."""
    generator = np.random.default_rng(seed)
    arrays = {}
    for port in ports:
        shape = [d for d in port.shape if isinstance(d, int)]
        if len(shape) != len(port.shape):
            dims = None if "..." in port.shape else port.shape
            example = shape_option(port.name, likely_shapes([(port.name, port.dtype.kind, dims)])[port.name])
            raise Error(f"[run] input {port}: got free dims, need {example}, for example, or --input with a file")
        floating = port.dtype.kind == "float"
        values = generator.standard_normal(shape) if floating else generator.integers(0, 2, shape)
        arrays[port.name] = values.astype(port.dtype.numpy)
    return arrays
