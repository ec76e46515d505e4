"""Gradients as a transformation of graphs: `hx.grad` adds the ops that compute them."""

from hexane.autograd.tensors import grad

__all__ = ["grad"]
