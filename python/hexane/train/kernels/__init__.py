"""The programs of the engine in a training step: which ops they hold, and their graphs with channels first."""

from hexane.train.kernels.kernel import Kernel, Tap, kernels

__all__ = ["Kernel", "Tap", "kernels"]
