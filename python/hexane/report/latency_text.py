"""The latency in one line, for reports on other subjects."""

from collections.abc import Sequence

from hexane.cost import Estimate


def latency_text(latency: Estimate) -> str:
    """Returns a text such as "about 874 us (636 to 2658 in eight of ten cases), mostly weights, by rates of M1"."""
    rates = rates_text(latency.measured_on, latency.target if latency.extrapolated else "")
    span = f"{latency.p10_us:.0f} to {latency.p90_us:.0f} in eight of ten cases"
    return f"about {latency.latency_us:.0f} us ({span}), mostly {latency.mostly}, {rates}; `hexane estimate` says more"


def rates_text(measured_on: str, unmeasured: str) -> str:
    """Returns a text such as "by rates of M1; no latency of A14 is known". unmeasured: names of chips, or ""."""
    return f"by rates of {measured_on}" + (f"; no latency of {unmeasured} is known" if unmeasured else "")


def rounded_parts(whole: float, parts: Sequence[float]) -> list[str]:
    """Returns the sum and its parts with as few decimals, up to 2, as it takes for the printed parts to add up."""
    for decimals in range(3):
        texts = [f"{number:.{decimals}f}" for number in (whole, *parts)]
        if abs(float(texts[0]) - sum(map(float, texts[1:]))) < 10 ** -(decimals + 1):
            break
    return texts
