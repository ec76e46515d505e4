"""Probes the engine's best rates: each configuration of `hexane bench`, in a process of its own."""

from functools import partial

from hexane.bench import Configuration, configurations, run
from hexane.errors import Error
from hexane.report.mac.probe import Context, Probe, Values

ASKED = ("dispatch", "threads", "peak", "sram", "int8")
PER_PROCESS = 200  # many cases share a process, because the benchmark's own worker handles a driver that hangs


def measure(configuration: Configuration, _: Context) -> Values:
    """Runs one configuration. The first call is cold, the timed calls are warm (docs/bench.md). Raises Error if the run
    fails."""
    document = run([configuration], "ane")
    (result,) = document["results"]
    if "error" in result:
        raise Error(f"[bench] {configuration.name}: {result['error']}")
    return {"result": result, "power": document["environment"]["power"]}


BENCHMARKS = Probe(
    "bench",
    "What do calls, products, memory and 8 bits cost?",
    {
        f"{name} {i}: {configuration.name}": partial(measure, configuration)
        for name in ASKED
        for i, configuration in enumerate(configurations(name, "ane"))
    },
    seconds=400.0,
    per_process=PER_PROCESS,
)
