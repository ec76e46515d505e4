"""Graphs of Hexane's ops in PyTorch: forward passes alone, so that torch.autograd gives gradients that share no rule
with `hexane.ops.gradients`. Import it where torch is installed."""

from in_torch.interpreter import gradients_in_torch, has_torch_form

__all__ = ["gradients_in_torch", "has_torch_form"]
