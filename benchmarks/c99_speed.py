"""The C99 runtime on this machine, one thread, whole tensors: CPU time for each inference of int8 networks, next to the
host's own kernels and TiGrIS' host runtime. Each runtime runs in a process of its own, in turns."""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from options import parser_of

NETWORKS = ("ds_cnn_int8", "resnet8_int8", "mobilenet_v1_025_96_int8", "mobilenet_v2_035_96_int8")
WAYS = ("c99", "c99 q31", "c99 baseline", "c99 q31 baseline", "host", "tigris")


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--runs", type=int, default=25, metavar="N", help="runs in each process; their median counts")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="processes of each; their median counts")
    parser.add_argument(
        "--only", default=",".join(NETWORKS), metavar="NAMES", help=f"networks, of {', '.join(NETWORKS)}"
    )
    parser.add_argument(
        "--tigris", type=Path, metavar="COMMAND", help="the command of tigris-ml, in its own environment"
    )
    parser.add_argument("--measure", nargs=2, metavar=("WAY", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        way, file = options.measure
        print(json.dumps(timed(call_of(way, Path(file)), options.runs)))
        return 0
    ways = [way for way in WAYS if way != "tigris" or options.tigris]
    print(
        "milliseconds of CPU time for an inference; baseline: built without -march=native; TiGrIS as its wheel has it\n"
    )
    print(f"| network | {' | '.join(ways)} | TiGrIS / c99 |")
    print("|---|" + "---|" * (len(ways) + 1))
    for name in options.only.split(","):
        compare(options.networks / f"{name}.onnx", ways, options)
    return 0


def compare(file: Path, ways: list[str], options: argparse.Namespace) -> None:
    if not file.exists():
        print(f"| {file.stem}: not there |")
        return
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.tgrs"
        if options.tigris:
            subprocess.run([options.tigris, "compile", file, "-m", "16M", "-o", plan], check=True, capture_output=True)
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(options.rounds):
            for way in ways:
                python = sys.executable if way != "tigris" else options.tigris.with_name("python")
                source = file if way != "tigris" else plan
                command = [python, __file__, "--measure", way, source, "--runs", str(options.runs)]
                ran = subprocess.run(command, check=True, capture_output=True, text=True)
                times[way].append(json.loads(ran.stdout))
    found = {way: median(values) for way, values in times.items()}
    ratio = f"{found['tigris'] / found['c99']:.2f}" if "tigris" in found else "-"
    print(f"| {file.stem} | {' | '.join(f'{found[way]:.3f}' for way in ways)} | {ratio} |", flush=True)


def call_of(way: str, file: Path) -> Callable[[], object]:
    if way == "tigris":
        from tigris.runtime import Session  # type: ignore[import-not-found]  # only in TiGrIS' environment

        session = Session(file)
        feeds = {
            port["name"]: np.random.default_rng(0).standard_normal(port["shape"]).astype(port["dtype"])
            for port in session.inputs
        }
        return lambda: session.run(feeds)
    import hexane as hx
    from hexane.runtime.c99 import C99Model, library

    numerics = "q31" if "q31" in way else ""
    net = hx.compile(file, target="host", threads=1, numerics=numerics)
    assert isinstance(net, hx.Model)
    feeds = {port.name: np.random.default_rng(0).standard_normal(port.shape).astype(port.dtype) for port in net.inputs}
    if way == "host":
        return net.bind(**feeds)
    with tempfile.TemporaryDirectory() as folder:
        net.save(Path(folder) / "net.hxp")
        plan = (Path(folder) / "net.hxp").read_bytes()
    model = C99Model(plan, library(() if "baseline" in way else ("-march=native",)))
    return lambda: model(feeds)


def timed(call: Callable[[], object], runs: int) -> float:
    """The median of the milliseconds that calls take, after three that warm up."""
    taken = []
    for _ in range(runs + 3):
        start = time.process_time()
        call()
        taken.append(1000 * (time.process_time() - start))
    return median(taken[3:])


if __name__ == "__main__":
    sys.exit(main())
