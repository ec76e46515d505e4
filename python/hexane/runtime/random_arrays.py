"""Random inputs of a network, for runs whose results do not matter."""

from collections.abc import Sequence

import numpy as np

from hexane.errors import Error
from hexane.graph import Array
from hexane.runtime.model import PortType
from hexane.runtime.open_model import shape_options


def random_arrays(ports: Sequence[PortType], seed: int) -> dict[str, Array]:
    """Returns arrays for ports of fixed shapes: normally distributed floats, and integers 0 or 1, which are valid
    indices of any table with two rows. Raises Error for a port with free dims."""
    generator = np.random.default_rng(seed)
    arrays = {}
    for port in ports:
        shape = [d for d in port.shape if isinstance(d, int)]
        if len(shape) != len(port.shape):
            options = " ".join(shape_options(ports))
            raise Error(f"[run] input {port}: got free dims, need {options}, for example, or --input with a file")
        floating = port.dtype.kind == "float"
        values = generator.standard_normal(shape) if floating else generator.integers(0, 2, shape)
        arrays[port.name] = values.astype(port.dtype.numpy)
    return arrays
