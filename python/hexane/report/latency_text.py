"""The latency in one line, for reports on other subjects."""

from hexane.cost import Estimate


def latency_text(latency: Estimate) -> str:
    """Returns a text such as "about 874 us (636 to 2658 in eight of ten cases), mostly weights, by rates of M1"."""
    rates = rates_text(latency.measured_on, latency.target if latency.extrapolated else "")
    span = f"{latency.p10_us:.0f} to {latency.p90_us:.0f} in eight of ten cases"
    return (
        f"about {latency.latency_us:.0f} us ({span}), mostly {latency.dominant}, {rates}; `hexane estimate` says more"
    )


def rates_text(measured_on: str, unmeasured: str) -> str:
    """Returns a text such as "by rates of M1; no latency of A14 is known". unmeasured: names of chips, or ""."""
    return f"by rates of {measured_on}" + (f"; no latency of {unmeasured} is known" if unmeasured else "")
