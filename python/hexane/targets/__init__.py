"""Compile targets: the host and every generation of Apple's engine, as data with sources."""

from hexane.targets.chip import Chip
from hexane.targets.detect import detect
from hexane.targets.divergence import fp16_divergence
from hexane.targets.fact import Claim, Fact
from hexane.targets.family import Family, Tier, family_of_hardware_version
from hexane.targets.groups import analytic_costs, arch_for_family, arch_for_tier
from hexane.targets.kernels import Kernels
from hexane.targets.legality import op_status
from hexane.targets.names import load_target, parse
from hexane.targets.query import chip_names, fact, family_of_arch, limit, native_streams, tier_of_arch
from hexane.targets.read import read_target
from hexane.targets.target import Numerics, Space, Target
from hexane.targets.verdict import Verdict

__all__ = [
    "Chip",
    "Claim",
    "Fact",
    "Family",
    "Kernels",
    "Numerics",
    "Space",
    "Target",
    "Tier",
    "Verdict",
    "analytic_costs",
    "arch_for_family",
    "arch_for_tier",
    "chip_names",
    "detect",
    "fact",
    "family_of_arch",
    "family_of_hardware_version",
    "fp16_divergence",
    "limit",
    "load_target",
    "native_streams",
    "op_status",
    "parse",
    "read_target",
    "tier_of_arch",
]
