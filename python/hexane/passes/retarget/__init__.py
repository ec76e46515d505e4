"""Rewrites a network for a chip: unsupported ops as other ops, and ops on tensors that are too large in pieces."""

from hexane.passes.retarget.retarget import among_others, retarget
from hexane.passes.retarget.verdicts import becomes, border_of, operands_of_form, rewritten, takes

__all__ = ["among_others", "becomes", "border_of", "operands_of_form", "retarget", "rewritten", "takes"]
