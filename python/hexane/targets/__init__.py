"""What programs are compiled for."""

from hexane.targets.kernels import Kernels
from hexane.targets.target import Target, load_target

__all__ = ["Kernels", "Target", "load_target"]
