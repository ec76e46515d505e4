"""Learning rates as functions of the step. The step is a state of the program, and 0 before the first update."""

from collections.abc import Callable
from math import pi

from hexane import build as hx
from hexane.build import Tensor
from hexane.errors import Error

Schedule = Callable[[Tensor], Tensor]  # the step, fp64 of shape () -> the learning rate, fp64 of shape ()


def constant(lr: float) -> Schedule:
    """Returns a schedule with the same rate in every step."""
    rate = _positive("lr", lr)
    return lambda step: step * 0.0 + rate


def warm_up(schedule: "Schedule | float", steps: int) -> Schedule:
    """Returns a schedule that rises linearly: the first step has 1 / steps of the schedule's first rate, and step
    number `steps` has the whole rate. The given schedule counts its steps from the end of the warm-up."""
    after = as_schedule(schedule)
    count = _positive("steps", steps)

    def rate(step: Tensor) -> Tensor:
        return after(hx.maximum(step - count, 0.0)) * hx.minimum((step + 1.0) / count, 1.0)

    return rate


def cosine(lr: float, steps: int, least: float = 0.0) -> Schedule:
    """Returns a schedule that falls from lr to `least` along half a cosine over `steps` steps, and stays at `least`."""
    first, count = _positive("lr", lr), _positive("steps", steps)

    def rate(step: Tensor) -> Tensor:
        angle = hx.minimum(step / count, 1.0) * pi
        return (hx.cos(angle) + 1.0) * ((first - least) / 2) + least

    return rate


def steps(lr: float, every: int, factor: float = 0.1) -> Schedule:
    """Returns a schedule that multiplies lr by `factor` after every `every` steps."""
    first, count = _positive("lr", lr), _positive("every", every)
    base = _positive("factor", factor)
    return lambda step: hx.pow(hx.maximum(step * 0.0 + base, 0.0), hx.floor(step / count)) * first


def as_schedule(given: "Schedule | float") -> Schedule:
    """Returns a schedule; a number becomes a constant one. Raises Error for anything else."""
    if callable(given):
        return given
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise Error(f"[train] lr: got {given!r}, need a number or a schedule such as hx.train.cosine(..)")
    return constant(given)


def _positive(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise Error(f"[train] {name}: got {value!r}, need a number above 0")
    return float(value)
