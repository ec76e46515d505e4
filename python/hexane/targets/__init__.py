"""What programs are compiled for."""

from hexane.targets.target import Memory, Numerics, Target, load_target

__all__ = ["Memory", "Numerics", "Target", "load_target"]
