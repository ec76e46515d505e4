"""Measures a device: dispatch, peak rate, memory near the units, I/O, 8 bits."""

from hexane.bench.document import compare, differences, read
from hexane.bench.probes import PROBES, PUBLISHED, Configuration, configurations
from hexane.bench.suite import run

__all__ = ["PROBES", "PUBLISHED", "Configuration", "compare", "configurations", "differences", "read", "run"]
