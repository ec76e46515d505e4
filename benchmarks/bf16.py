"""Networks in fp32, in bf16 and with dtype "auto", next to OpenVINO in f32 and in the precision that it chooses itself:
milliseconds of a call on one thread, and the distance of the outputs from Hexane's in fp32, in relative L2.

Hexane and OpenVINO take turns, each in a process of its own. Needs openvino, here or in another environment
(--openvino PYTHON); its columns are empty without it. ResNet-18 and MobileNetV2 need the folder of gen.py (--models).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
FILES = {"resnet18": "resnet18_224", "mobilenet_v2": "mobilenet_v2_100_224"}
NETWORKS = (*FILES, "encoder", "bert", "gpt2", "vit")
OURS = ("fp32", "bf16", "auto")
PEERS = {"openvino f32": "f32", "openvino": ""}
SECONDS, MOST_CALLS = 2.0, 50
WORDS = 30000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", default=",".join(NETWORKS), metavar="NAMES", help=f"networks, of {', '.join(NETWORKS)}"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="processes of each; their median counts")
    parser.add_argument(
        "--openvino", default=sys.executable, metavar="PYTHON", help="the interpreter that has openvino"
    )
    parser.add_argument("--models", type=Path, default=ROOT.parent / "shared" / "models", metavar="DIR")
    parser.add_argument("--measure", nargs=2, metavar=("WHO", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        who, folder = options.measure
        print(json.dumps(measured(who, Path(folder), options.threads)))
        return 0
    print(f"load of the machine (1, 5, 15 minutes): {', '.join(f'{one:.1f}' for one in os.getloadavg())}")
    print(f"| network | {' | '.join((*OURS, *PEERS))} | {' | '.join(f'{who} error' for who in (*OURS[1:], *PEERS))} |")
    print("|---" * (1 + 2 * len((*OURS, *PEERS)) - 1) + "|")
    for name in (name for name in NETWORKS if name in options.only.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            if not write_model(name, Path(folder), options.models):
                print(f"| {name} | {options.models / 'gen.py'} is not there |")
                continue
            row(name, Path(folder), options)
    return 0


def write_model(name: str, folder: Path, models: Path) -> bool:
    """The model and its inputs; False if the program that writes the model is missing."""
    rng = np.random.default_rng(0)
    path = folder / "model.onnx"
    if name in FILES:
        if not (models / "gen.py").exists():
            return False
        command = [sys.executable, models / "gen.py", "--no-int8", "--out", folder, "--only", FILES[name]]
        subprocess.run(list(map(str, command)), check=True, capture_output=True)
        (folder / f"{FILES[name]}.onnx").rename(path)
    else:
        import onnx
        from bf16_networks import TRANSFORMERS

        onnx.save(TRANSFORMERS[name](), path)
    import hexane as hx

    (port,) = hx.compile(path, threads=1).inputs
    pixels = (rng.uniform(0, 255, port.shape) - 127.5) / 58 if port.dtype.kind == "float" else None
    feed = rng.integers(0, WORDS, port.shape) if pixels is None else pixels
    np.savez(folder / "feeds.npz", **{port.name: feed.astype(port.dtype.numpy)})
    return True


def row(name: str, folder: Path, options: argparse.Namespace) -> None:
    found: dict[str, list[float]] = {who: [] for who in (*OURS, *PEERS)}
    for _ in range(options.rounds):
        for who, times in found.items():
            python = sys.executable if who in OURS else options.openvino
            command = [python, __file__, "--threads", str(options.threads), "--measure", who, str(folder)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                times.append(json.loads(done.stdout.splitlines()[-1])["ms"])
            elif who in OURS:
                sys.exit(done.stderr)
    whole = np.load(folder / "fp32.npy").astype(np.float64)

    def error(who: str) -> str:
        if not found[who]:
            return "-"
        return f"{np.linalg.norm(np.load(folder / f'{who}.npy') - whole) / np.linalg.norm(whole):.1e}"

    times = [f"{median(some):.2f}" if some else "-" for some in found.values()]
    print(f"| {name} | {' | '.join(times)} | {' | '.join(error(who) for who in (*OURS[1:], *PEERS))} |", flush=True)


def measured(who: str, folder: Path, threads: int) -> dict[str, float]:
    """The median of the calls of this process; writes the output."""
    feeds = dict(np.load(folder / "feeds.npz"))
    call, output = (hexane_call if who in OURS else openvino_call)(who, folder / "model.onnx", feeds, threads)
    call()
    np.save(folder / f"{who}.npy", output())
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(times) < MOST_CALLS and (len(times) < 3 or time.perf_counter() < end):
        begin = time.perf_counter()
        call()
        times.append((time.perf_counter() - begin) * 1e3)
    return {"ms": median(times)}


def hexane_call(who: str, path: Path, feeds: dict[str, Any], threads: int) -> tuple[Any, Any]:
    import hexane as hx

    dtype = hx.AutoDtype(calibration=feeds) if who == "auto" else who
    net = hx.compile(path, dtype=dtype, threads=threads)
    return net.bind(**feeds), lambda: np.array(net(feeds))


def openvino_call(who: str, path: Path, feeds: dict[str, Any], threads: int) -> tuple[Any, Any]:
    import openvino

    core = openvino.Core()
    config = {"INFERENCE_NUM_THREADS": str(threads), "NUM_STREAMS": "1"}
    if PEERS[who]:
        config["INFERENCE_PRECISION_HINT"] = PEERS[who]
    compiled = core.compile_model(core.read_model(str(path)), "CPU", config)
    request = compiled.create_infer_request()
    for name, array in feeds.items():
        request.set_tensor(name, openvino.Tensor(array, shared_memory=True))
    return request.infer, lambda: request.get_tensor(compiled.outputs[0]).data.copy()


if __name__ == "__main__":
    sys.exit(main())
