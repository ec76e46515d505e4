"""The engine's programs in a training step: the ops of each, and their graphs in channels-first layout."""

from hexane.train.kernels.groups import VARIANTS, Variant
from hexane.train.kernels.kernel import Kernel, Tap, kernels
from hexane.train.kernels.on_engine import on_engine

__all__ = ["VARIANTS", "Kernel", "Tap", "Variant", "kernels", "on_engine"]
