"""All probes in the order in which they run. Probes that explain later probes come first."""

from hexane.report.mac.benchmarks import BENCHMARKS
from hexane.report.mac.catalogue import CATALOGUE
from hexane.report.mac.coreml import COREML
from hexane.report.mac.interface import ATTRIBUTES, INTERFACE, SELF_TEST, SYSTEM
from hexane.report.mac.lifecycle import ALIVE, ERRORS, FORK, KEPT, LIFECYCLE, THREADS, WEIGHTS
from hexane.report.mac.limits import ARGUMENTS, BLOBS, MANY, SPELLING, SURFACES
from hexane.report.mac.probe import Probe
from hexane.report.mac.reductions import REDUCTIONS

PROBES = (
    SYSTEM, INTERFACE, SELF_TEST, ATTRIBUTES, LIFECYCLE, KEPT, WEIGHTS, ERRORS, SPELLING, ARGUMENTS, BLOBS, SURFACES,
    THREADS, FORK, REDUCTIONS, CATALOGUE, BENCHMARKS, COREML, MANY,
)  # fmt: skip
# The probe that runs after a case without an answer.
RECOVERY = Probe("recovery", "Does the engine work again after a process that hung or crashed?", ALIVE)


def find_probe(name: str) -> Probe:
    return next(probe for probe in (*PROBES, RECOVERY) if probe.name == name)
