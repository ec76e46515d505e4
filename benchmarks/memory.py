"""The arena of networks in whole tensors and streamed row by row, and the CPU time that streaming takes, on one thread."""

import argparse
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np

import hexane as hx

ROOT = Path(__file__).parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--networks",
        type=Path,
        default=ROOT / "build" / "models",
        metavar="DIR",
        help="folder of .onnx files (default: build/models, where the tests build them)",
    )
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="of each, of which the median counts")
    options = parser.parse_args()
    files = sorted(options.networks.glob("*.onnx"))
    print(
        "bytes of arena; scratch: bytes that kernels use beside it; live: the most bytes live at once; speed: by CPU time\n"
    )
    print("| network | whole | streamed | live | share | scratch | steps in loops | speed |")
    print("|---|---|---|---|---|---|---|---|")
    for file in files:
        measure(file, options.runs)
    if not files:
        print("no networks: --networks names a folder of them")
    return 0


def measure(file: Path, runs: int) -> None:
    nets = [hx.compile(file, target="host", threads=1, stream_rows=rows) for rows in (0, 1)]
    whole, streamed = nets
    assert isinstance(whole, hx.Model)
    assert isinstance(streamed, hx.Model)
    assert streamed.program is not None
    rng = np.random.default_rng(0)
    feeds = {port.name: rng.standard_normal(port.shape).astype(port.dtype) for port in whole.inputs}
    calls = [net.bind(**feeds) for net in (whole, streamed)]
    times: list[list[float]] = [[], []]
    for _ in range(runs + 1):  # the first warms up
        for call, taken in zip(calls, times, strict=True):
            start = time.process_time()
            call()
            taken.append(time.process_time() - start)
    for name, output in calls[0].outputs.items():
        assert output.tobytes() == calls[1].outputs[name].tobytes(), f"{file.stem}: {name}"
    arenas = [net.memory["arena"] for net in (whole, streamed)]
    speed = median(times[0][1:]) / median(times[1][1:])
    looped = sum(step.cut is not None for step in streamed.program.steps)
    live = streamed.program.extents["arena"].bound
    print(
        f"| {file.stem} | {arenas[0]:,} | {arenas[1]:,} | {live:,} | {arenas[1] / arenas[0]:.2f} | "
        f"{streamed.memory['scratch']:,} | {looped} of {len(streamed.steps)} | {speed:.2f} |",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
