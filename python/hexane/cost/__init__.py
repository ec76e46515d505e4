"""Estimates the cost of a chip's program: a formula whose parameters are fitted to published latencies for each chip,
with intervals from its errors on measurements left out of the fit (docs/cost.md)."""

from hexane.cost.estimate import Estimate, LayerCost, estimate_program
from hexane.cost.least import Least, least
from hexane.cost.peak import Peak, project_peak

__all__ = ["Estimate", "LayerCost", "Least", "Peak", "estimate_program", "least", "project_peak"]
