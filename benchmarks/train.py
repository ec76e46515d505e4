"""A training step (forward, backward, update) of three networks: its milliseconds, and the growth of the process's
memory. PyTorch's eager step is measured in turns with Hexane's, each in a process of its own.

The MLP has 784-512-10 units and batches of 64, ResNet-8 batches of 32 images of 32 x 32, the encoder 2 layers of width
128 with 4 heads on batches of 4 x 64 tokens. All three networks train in fp32 with AdamW. Needs torch, here or in
another environment (--torch PYTHON). --compiled measures `torch.compile` of the loss as well, which needs a C++
compiler.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np

NETWORKS = ("mlp", "resnet8", "encoder")
COMPILED = "torch.compile"
TOKENS, WIDTH, HEADS, WORDS, CLASSES = 64, 128, 4, 200, 10
Step = Callable[[], object]
Maker = Callable[[str, int, np.random.Generator], tuple[Step, float, float]]


def main() -> int:
    makers = {"hexane": hexane_step, "torch": torch_step, COMPILED: partial(torch_step, is_compiled=True)}
    return compare(__file__, __doc__, NETWORKS, makers)


def compare(
    file: str, description: str | None, networks: Sequence[str], makers: Mapping[str, Maker], calls: int = 1
) -> int:
    """The command of a benchmark of training steps, which starts `file` again for each measurement. calls: how many
    calls make one update; the result is their mean."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", default=",".join(networks), metavar="NAMES", help=f"networks, of {', '.join(networks)}"
    )
    parser.add_argument("--threads", default="1,2", metavar="COUNTS")
    parser.add_argument("--runs", type=int, default=30, metavar="N", help="updates in a process; their median counts")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="processes of each; their median counts")
    parser.add_argument("--torch", default=sys.executable, metavar="PYTHON", help="the interpreter that has torch")
    if COMPILED in makers:
        parser.add_argument("--compiled", action="store_true", help="with torch.compile, too")
    parser.add_argument("--measure", nargs=3, metavar=("WHO", "NETWORK", "THREADS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        who, name, threads = options.measure
        print(json.dumps(measured(makers[who], name, int(threads), options.runs, calls)))
        return 0
    if options.only and not set(networks) & set(options.only.split(",")):
        return 0
    is_compiled = bool(vars(options).get("compiled"))
    print("| network | threads | hexane ms | torch ms | hexane / torch | MiB | torch MiB | compile ms |", end="")
    print(" torch.compile ms | hexane / it |" if is_compiled else "")
    print("|---|---|---|---|---|---|---|---|" + "---|---|" * is_compiled)
    for name in (name for name in networks if name in options.only.split(",")):
        for threads in options.threads.split(","):
            row(file, name, threads, options, is_compiled)
    return 0


def row(file: str, name: str, threads: str, options: argparse.Namespace, is_compiled: bool) -> None:
    found: dict[str, list[dict[str, float]]] = {"hexane": [], "torch": [], **({COMPILED: []} if is_compiled else {})}
    for _ in range(options.rounds):
        for who, some in found.items():
            python = sys.executable if who == "hexane" else options.torch
            command = [python, file, "--runs", str(options.runs), "--measure", who, name, threads]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                some.append(json.loads(done.stdout))
            elif who == "hexane":
                sys.exit(done.stderr)

    def middle(who: str, what: str) -> float:
        return median([one[what] for one in found[who]]) if found[who] else float("nan")

    ours, theirs = middle("hexane", "ms"), middle("torch", "ms")
    print(
        f"| {name} | {threads} | {ours:.2f} | {theirs:.2f} | {ours / theirs:.2f} | {middle('hexane', 'mib'):.1f} |"
        f" {middle('torch', 'mib'):.1f} | {middle('hexane', 'compile_ms'):.0f} |",
        end="",
    )
    other = middle(COMPILED, "ms") if is_compiled else 0.0
    print(f" {other:.2f} | {ours / other:.2f} |" if is_compiled else "", flush=True)


def measured(make: Maker, name: str, threads: int, runs: int, calls: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    step, before, compile_ms = make(name, threads, rng)
    for _ in range(max(min(5, runs), calls)):
        step()
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        for _ in range(calls):
            step()
        times.append((time.perf_counter() - begin) * 1e3 / calls)
    mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {"ms": median(times), "mib": mib, "compile_ms": compile_ms}


def feeds(name: str, rng: np.random.Generator) -> tuple[Any, Any]:
    if name == "encoder":
        return rng.integers(0, WORDS, (4, TOKENS)).astype(np.int32), rng.integers(0, CLASSES, 4).astype(np.int32)
    shape = (64, 784) if name == "mlp" else (32, 3, 32, 32)
    return rng.standard_normal(shape).astype(np.float32), rng.integers(0, CLASSES, shape[0]).astype(np.int32)


# ---- Hexane ----


def hexane_step(name: str, threads: int, rng: np.random.Generator) -> tuple[Step, float, float]:
    import hexane as hx

    x, labels = feeds(name, rng)
    params: list[hx.Tensor] = []

    def param(*shape: int, scale: float = 0.0) -> hx.Tensor:
        array = (rng.standard_normal(shape) * scale).astype(np.float32) if scale else np.zeros(shape, np.float32)
        params.append(hx.param(f"p{len(params)}", array))
        return params[-1]

    def linear(v: hx.Tensor, count: int) -> hx.Tensor:
        return hx.linear(v, param(count, v.shape[-1], scale=v.shape[-1] ** -0.5), param(count))

    def conv(v: hx.Tensor, count: int, size: int = 3, stride: int = 1) -> hx.Tensor:
        fan = v.shape[1] * size * size
        weight = param(count, v.shape[1], size, size, scale=(2 / fan) ** 0.5)
        return hx.conv(v, weight, param(count), strides=stride, pad=size // 2)

    def block(v: hx.Tensor, count: int, stride: int) -> hx.Tensor:
        y = conv(hx.relu(conv(v, count, 3, stride)), count)
        return hx.relu(y + (conv(v, count, 1, stride) if stride > 1 else v))

    def norm(v: hx.Tensor) -> hx.Tensor:
        return hx.layer_norm(v, param(WIDTH) + 1.0, param(WIDTH))

    def attention(v: hx.Tensor) -> hx.Tensor:
        heads = [
            hx.transpose(hx.reshape(linear(v, WIDTH), shape=(4, TOKENS, HEADS, -1)), perm=(0, 2, 1, 3))
            for _ in range(3)
        ]
        mixed = hx.scaled_dot_product_attention(*heads)
        return linear(hx.reshape(hx.transpose(mixed, perm=(0, 2, 1, 3)), shape=(4, TOKENS, WIDTH)), WIDTH)

    inputs = hx.input("x", x.shape, x.dtype)
    if name == "mlp":
        y = linear(hx.relu(linear(inputs, 512)), CLASSES)
    elif name == "resnet8":
        y = block(block(block(hx.relu(conv(inputs, 16)), 16, 1), 32, 2), 64, 2)
        y = linear(hx.flatten(hx.avg_pool(y, kernel_sizes=8)), CLASSES)
    else:
        y = hx.gather(param(WORDS, WIDTH, scale=1.0), inputs) + param(TOKENS, WIDTH, scale=0.1)
        for _ in range(2):
            y = y + attention(norm(y))
            y = y + linear(hx.gelu(linear(norm(y), 4 * WIDTH)), WIDTH)
        y = linear(hx.reduce_mean(norm(y), axes=(1,), keep_dims=False), CLASSES)
    loss = hx.cross_entropy(y, hx.input("labels", labels.shape, "int32"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    net = hx.compile(hx.train.step(loss, params, hx.train.adamw(1e-3)), threads=threads)
    compile_ms = (time.perf_counter() - begin) * 1e3
    assert isinstance(net, hx.Model)
    return net.bind(x=x, labels=labels), before, compile_ms


# ---- PyTorch ----


def torch_step(
    name: str, threads: int, rng: np.random.Generator, is_compiled: bool = False
) -> tuple[Step, float, float]:
    import torch
    from torch import nn

    torch.set_num_threads(threads)
    x, labels = (torch.from_numpy(a) for a in feeds(name, rng))
    labels = labels.long()

    class Block(nn.Module):
        def __init__(self, channels: int, count: int, stride: int) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(channels, count, 3, stride, 1), nn.Conv2d(count, count, 3, 1, 1)
            self.skip = nn.Conv2d(channels, count, 1, stride) if stride > 1 else nn.Identity()

        def forward(self, v: Any) -> Any:
            return torch.relu(self.second(torch.relu(self.first(v))) + self.skip(v))

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
            self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, v: Any) -> Any:
            y = self.norms[0](v)
            heads = [part(y).view(4, TOKENS, HEADS, -1).transpose(1, 2) for part in self.parts[:3]]
            mixed = nn.functional.scaled_dot_product_attention(*heads)
            v = v + self.parts[3](mixed.transpose(1, 2).reshape(4, TOKENS, WIDTH))
            return v + self.down(nn.functional.gelu(self.up(self.norms[1](v))))

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(TOKENS, WIDTH) * 0.1)
            self.layers, self.norm, self.out = (
                nn.Sequential(Layer(), Layer()),
                nn.LayerNorm(WIDTH),
                nn.Linear(WIDTH, CLASSES),
            )

        def forward(self, v: Any) -> Any:
            return self.out(self.norm(self.layers(self.words(v) + self.places)).mean(1))

    net: nn.Module
    if name == "mlp":
        net = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, CLASSES))
    elif name == "resnet8":
        net = nn.Sequential(
            nn.Conv2d(3, 16, 3, 1, 1), nn.ReLU(), Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2),
            nn.AvgPool2d(8), nn.Flatten(), nn.Linear(64, CLASSES),
        )  # fmt: skip
    else:
        net = Encoder()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def loss(given: Any, wanted: Any) -> Any:
        return nn.functional.cross_entropy(net(given), wanted)

    of_batch = torch.compile(loss) if is_compiled else loss

    def step() -> None:
        optimizer.zero_grad()
        of_batch(x, labels).backward()
        optimizer.step()

    return step, before, 0.0


if __name__ == "__main__":
    sys.exit(main())
