"""What a chip's program will cost: a formula with parameters for each chip, fitted to published latencies, and
intervals from how far the formula was off where it had not seen the measurement (docs/cost.md)."""

from hexane.cost.estimate import Estimate, LayerCost, estimate_program
from hexane.cost.least import Least, least
from hexane.cost.peak import Peak, project_peak

__all__ = ["Estimate", "LayerCost", "Least", "Peak", "estimate_program", "least", "project_peak"]
