"""Gradients as a transformation of graphs: `hx.grad` adds the ops that compute them, and `hx.checkpoint` marks values
that are recomputed."""

from hexane.autograd.checkpoint import checkpoint
from hexane.autograd.tensors import grad

__all__ = ["checkpoint", "grad"]
