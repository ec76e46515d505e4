"""A latency in a line, as reports about other things show it."""

from hexane.cost import Estimate


def latency_text(found: Estimate) -> str:
    """about 874 us (636 to 2658 in eight of ten cases), mostly weights, by rates of M1."""
    rates = f"by rates of {found.measured_on}" + (", no latency of this chip is known" if found.extrapolated else "")
    span = f"{found.p10_us:.0f} to {found.p90_us:.0f} in eight of ten cases"
    return f"about {found.latency_us:.0f} us ({span}), mostly {found.dominant}, {rates}; `hexane estimate` says more"
