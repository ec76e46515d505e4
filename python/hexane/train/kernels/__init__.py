"""The programs of the engine in a training step: which ops they hold, and their graphs with channels first."""

from hexane.train.kernels.groups import VARIANTS, Variant
from hexane.train.kernels.kernel import Kernel, Tap, kernels
from hexane.train.kernels.on_engine import on_engine

__all__ = ["VARIANTS", "Kernel", "Tap", "Variant", "kernels", "on_engine"]
