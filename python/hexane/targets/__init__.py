"""What programs are compiled for."""

from hexane.targets.target import Target, load_target

__all__ = ["Target", "load_target"]
