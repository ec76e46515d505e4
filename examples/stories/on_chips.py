"""Trains the decoder of train.py for some steps in fp32 and in the arithmetic of chips, and compares the losses.

`ieee` is fp32 inside a layer, rounded to fp16 after it; `engine` is the chip's arithmetic as far as it is known.

    python examples/stories/train.py -o stories        # makes the tokens
    python examples/stories/on_chips.py stories --plot curves.png
"""

import argparse
import json
import sys
from pathlib import Path

import hexane as hx
from hexane.report.plotting import check_plotting
from train import MODEL, TRAINING, hexane, options_of

HOST = "host, fp32"
SCHEDULE = {"schedule": "constant", "warm-up": 10, "lr": 1e-3}
RECENT = 10  # the table has the mean loss of this many last steps


def curve(data: Path, folder: Path, steps: int, options: dict[str, object]) -> list[float]:
    settings = options_of({**MODEL, **TRAINING, **SCHEDULE, **options, "steps": steps})
    hexane("train", "--data", data, *settings, "--resume", "-o", folder)
    lines = (folder / "log.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line)["loss"] for line in lines[:steps]]


def draw(path: Path, curves: dict[str, list[float]]) -> None:
    """Plots the losses, and below them each loss minus the loss in fp32."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 7.0), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    for name, losses in curves.items():
        steps = range(1, len(losses) + 1)
        above.plot(steps, losses, lw=1.2, label=name)
        below.plot(steps, [a - b for a, b in zip(losses, curves[HOST], strict=True)], lw=1.2)
    above.set_ylabel("loss")
    above.legend(fontsize=8)
    below.set_ylabel("difference from fp32")
    below.set_xlabel("step")
    for axes in (above, below):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="what train.py wrote")
    parser.add_argument("--targets", default="M4", help="chips, with commas between them; default: M4")
    parser.add_argument("--steps", type=int, default=100, help="at least 11; default: 100")
    parser.add_argument("--loss-scale", type=float, default=8192.0, help="for chips; default: 8192")
    parser.add_argument("--threads", type=int, help="default: all cores")
    parser.add_argument("--plot", type=Path, metavar="F.png", help="draw the curves: .png, .svg or .pdf")
    asked = parser.parse_args()
    data = asked.folder / "train.bin"
    if not data.exists():
        sys.exit(f"got no {data}, need what `python examples/stories/train.py -o {asked.folder}` makes")
    if asked.plot:
        check_plotting("on_chips")
    threads = {"threads": asked.threads} if asked.threads else {}
    cases: dict[str, dict[str, object]] = {HOST: {}}
    for target in asked.targets.split(","):
        for numerics in ("ieee", "engine"):
            cases[f"{target}, {numerics}"] = {
                "target": target, "numerics": numerics, "loss-scale": asked.loss_scale,
            }  # fmt: skip
    curves = {
        name: curve(data, asked.folder / name.replace(", ", "-"), asked.steps, {**options, **threads})
        for name, options in cases.items()
    }
    print(f"| arithmetic | loss of the last {RECENT} steps | largest difference from fp32 in a step |")
    print("|---|---|---|")
    for name, losses in curves.items():
        apart = max(abs(a - b) for a, b in zip(losses, curves[HOST], strict=True))
        print(f"| {name} | {sum(losses[-RECENT:]) / len(losses[-RECENT:]):.4f} | {apart:.4f} |")
    if asked.plot:
        draw(asked.plot, curves)


if __name__ == "__main__":
    try:
        main()
    except hx.Error as error:
        sys.exit(str(error))
