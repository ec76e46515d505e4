"""Measures one configuration in this process: `python -m hexane.bench.worker` reads it from stdin and prints results.

Each configuration has a process of its own, so its first call finds no warm cache, and the Neural Engine's limit on
compilations per process is never reached.
"""

import json
import sys
import time
from dataclasses import asdict
from typing import Any

import numpy as np

from hexane import options
from hexane.bench.energy import Meter, meter_command
from hexane.bench.networks import NETWORKS, Array, Network
from hexane.bench.probes import Configuration, Device
from hexane.bench.statistics import Times, measure, measure_together
from hexane.cost import estimate_program
from hexane.cost.demand import demand
from hexane.errors import Error
from hexane.report.estimate import program_for
from hexane.runtime import Model, compile, engine
from hexane.targets.detect import detect_name
from hexane.targets.query import load_chip

# Relative distance (L2) from NumPy's result. Wrong weights give about 1. The fixed-point sums of an engine give 0.01
# for each layer, and grow with the root of the number of layers.
FARTHEST = 0.2
IDLE = 0.5  # seconds


def run(c: Configuration, device: Device, seconds: float, threads: int | None) -> dict[str, Any]:
    """The cost of the call and the check of its result, as in the document of results (docs/bench.md)."""
    stored = 4 if device == "cpu" and c.dtype == "fp32" else 2  # an engine stores every float as fp16
    network = NETWORKS[c.network](c.dtype, stored, **c.sizes)
    before = _compiles(device)
    start = time.perf_counter()
    net = _compile(network, c, device, 1 if c.mode == "threads" else threads)
    compiled = time.perf_counter() - start
    compiles = _compiles(device) - before
    start = time.perf_counter()
    net(network.inputs)
    first = time.perf_counter() - start
    with Meter(meter_command()[0]) as meter:
        times, outputs, more = _times(c, network, net, device, seconds)
    distance = max(_distance(output, network.expected) for output in outputs)
    record = {
        "compile_ms": compiled * 1000,
        "first_us": first * 1e6,
        "times_us": asdict(times),
        "operations": network.operations,
        "weight_bytes": network.weight_bytes,
        "activation_bytes": network.activation_bytes,
        "gflops": network.operations / times.p50 / 1000,
        "distance": distance,
        "largest_error": max(_largest_error(output, network.expected) for output in outputs),
        "threads_of_cpu": net.threads,
        "ran_on": net.device,
        **more,
    }
    if meter.power is not None:
        record["power"] = asdict(meter.power)
        if c.mode in ("bound", "call"):  # other modes let the device idle between calls, or overlap calls
            record["microjoules"] = (meter.power.cpu_mw + meter.power.ane_mw) * times.p50 / 1000
    if device == "ane" and c.mode in ("bound", "call"):
        record |= _estimated(network)
    if device == "ane":
        record["compiles"] = compiles
        if not compiles:
            record["error"] = "compile_ms is not cold: the engine's compiler was not asked"
    if not distance <= FARTHEST:  # NaN too
        record["error"] = f"a wrong result: its distance from NumPy's is {distance:.3g}, need at most {FARTHEST}"
    return record


def _estimated(network: Network) -> dict[str, Any]:
    """The estimated time of the call, and its demand on the chip. `hexane bench --calibrate` reads the estimate and the
    demand."""
    chip = load_chip(detect_name().written)
    program = program_for(network.graph, chip)
    forecast = estimate_program(program, chip)
    known = {key: getattr(forecast, key) for key in ("latency_us", "p10_us", "p90_us", "measured_on", "extrapolated")}
    return {"estimate": known, "demand": asdict(demand(program))}


def _compiles(device: Device) -> int:
    """The number of programs that the engine's compiler has compiled for this process."""
    driver = engine.find_engine(engine.own_chip())[0] if device == "ane" else None
    return 0 if driver is None else driver.counters["compiled"] + driver.counters["compiles_in_loads"]


def _compile(network: Network, c: Configuration, device: Device, threads: int | None, cold: bool = True) -> Model:
    """The compiled network: for this machine's chip, on its engine and nowhere else, or for the CPU in the dtypes of
    the network.

    cold: compile even if the engine service has a copy.
    """
    if device == "ane":
        net = compile(network.graph, device=options.Device("ane", qos=c.qos, cache=not cold), fallback="error")
    else:
        net = compile(network.graph, target="host", threads=threads)
    assert isinstance(net, Model)  # compile() returns a Model for fixed shapes
    return net


def _times(
    c: Configuration, network: Network, net: Model, device: Device, seconds: float
) -> tuple[Times, list[Array], dict[str, float]]:
    """The times, the results of the timed calls, and additional entries of the record."""
    if c.mode == "call":
        kept: list[Any] = [None]

        def call() -> None:
            kept[0] = net(network.inputs)

        return measure(call, seconds), kept, {}
    nets = [net]
    if c.mode == "threads":
        nets += [_compile(network, c, device, 1, cold=False) for _ in range(c.threads - 1)]
    outputs = [np.zeros_like(one(network.inputs)) for one in nets]
    calls = [
        one.bind(**network.inputs, **{one.outputs[0].name: output}) for one, output in zip(nets, outputs, strict=True)
    ]
    if c.mode != "threads":
        before = (lambda: time.sleep(IDLE)) if c.mode == "idle" else None
        return measure(calls[0], seconds, before=before), outputs, {}

    measured = measure_together(calls, seconds)
    return measured.times, outputs, {"mean_us": measured.mean_us, "calls_per_second": measured.calls_per_second}


def _distance(got: Array, expected: Array) -> float:
    a, b = got.astype(float), expected.astype(float)
    return float(np.linalg.norm(a - b) / (np.linalg.norm(b) or 1))


def _largest_error(got: Array, expected: Array) -> float:
    return float(np.abs(got.astype(float) - expected.astype(float)).max(initial=0.0))


def main() -> None:
    """Prints a JSON object to stdout, with exit code 0, and with "error" if the configuration could not be measured."""
    request = json.load(sys.stdin)
    configuration = Configuration(**request["configuration"])
    try:
        record = run(configuration, request["device"], request["seconds"], request["threads"])
    except Error as error:
        record = {"error": str(error)}
    json.dump(record, sys.stdout)


if __name__ == "__main__":
    main()
