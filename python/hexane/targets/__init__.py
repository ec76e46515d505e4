"""What programs are compiled for."""

from hexane.targets.target import Numerics, Target, load_target

__all__ = ["Numerics", "Target", "load_target"]
