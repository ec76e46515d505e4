"""The CPU's part of a training step on an engine, by lane: a decoder's step in which the engine's programs take no
time.

    python benchmarks/host_part.py --model stories110M --threads 2

The programs have the ports of real programs but do nothing: the host reads zeros, and its work is the same. The compile
time is Hexane's alone, without Apple's compiler.
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import hexane as hx
from engines import plan_engine
from hexane import _core
from hexane.runtime import engine
from hexane.train.kernels import VARIANTS
from hexane.train.lanes import LaneTimes


class NullEngine:
    """An engine whose programs have the ports of real programs and do nothing. seconds: the time to find these
    ports."""

    name = "null"

    def __init__(self) -> None:
        self.counters = {"compiled": 0, "compiles_in_loads": 0, "compile_limit": 0, "loaded": 0, "load_limit": 0}
        self.seconds = 0.0

    def find(self, mil: str, weights: dict[str, bytes]) -> None:
        """Returns None: the engine has cached no program."""

    def compile(self, mil: str, weights: dict[str, bytes], qos: int) -> _core.DeviceProgram:
        begin = time.perf_counter()
        made = plan_engine().compile(mil, weights, qos)
        made.load(qos)
        null = _core.null_device(made.inputs, made.outputs).compile(mil, weights, qos)
        self.counters["compiled"] += 1
        self.seconds += time.perf_counter() - begin
        return null


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="stories110M", metavar="NAME")
    parser.add_argument("--target", default="h16g", metavar="CHIP")
    parser.add_argument("--variant", default=VARIANTS[0], choices=VARIANTS)
    parser.add_argument("--seq", type=int, default=256, metavar="TOKENS")
    parser.add_argument("--threads", type=int, default=2, metavar="N")
    parser.add_argument("--runs", type=int, default=11, metavar="N", help="batches; their median counts")
    options = parser.parse_args()
    device = NullEngine()
    engine.find_engine = lambda _: (device, "")  # type: ignore[assignment, return-value]
    config = hx.train.LlamaConfig.named(options.model, seq=options.seq)
    model = hx.train.llama(config)
    step = hx.train.step(model.loss, list(model.params.values()), hx.train.adamw(3e-4), accumulate=10, loss_scale=256.0)
    begin = time.perf_counter()
    net = hx.compile(hx.train.on_engine(step, options.variant), target=options.target, threads=options.threads)
    compiled = time.perf_counter() - begin - device.seconds
    assert isinstance(net, hx.Model)
    print(f"{net.device}, {device.counters['compiled']} different ones")
    print(f"compile {compiled:.2f} s, without the device's")
    ids = np.random.default_rng(0).integers(0, config.vocab, (1, options.seq)).astype(np.int32)
    lanes, found, whole = LaneTimes(net), [], []
    net(tokens=ids, labels=ids)
    for _ in range(options.runs):
        begin = time.perf_counter()
        net(tokens=ids, labels=ids)
        whole.append((time.perf_counter() - begin) * 1e3)
        found.append(lanes.read())
    for name in sorted({name for one in found for name in one}):
        print(f"{name:10}{median([one.get(name, 0.0) for one in found]):9.2f} ms")
    print(f"{'a batch':10}{median(whole):9.2f} ms, {options.threads} threads")
    others: dict[str, float] = {}
    for one in net.steps:
        others[one["kernel"]] = others.get(one["kernel"], 0) + one["median"] / 1e6
    dearest = sorted(others.items(), key=lambda row: -row[1])[:10]
    print("by kernel:", ", ".join(f"{kernel} {ms:.2f}" for kernel, ms in dearest))


if __name__ == "__main__":
    main()
