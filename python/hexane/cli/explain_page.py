"""`hexane explain` as the page docs/explain.md, with an example: `python -m hexane.cli.explain_page >
docs/explain.md`."""

import sys

import numpy as np

from hexane import build as hx
from hexane.graph import Graph
from hexane.graph.origins import source_scope
from hexane.report.explain import explain

CHIPS = ("A14", "M5")

PAGE = """# What compiling made of a network

`hexane explain` compiles a model for a chip and says what came out, and why: from the program's layers, tensors, partitions and decisions
alone ([engine.md](engine.md), [schedule.md](schedule.md)). Nothing runs, no chip is needed.

```
hexane explain net.onnx --target A14                       # layers, partitions, on-chip memory, traffic, what dominates
hexane explain net.onnx --target M1 --node conv_3          # the story of a node; 12: of layer 12; op3: of an op as hexane check numbers them
hexane explain net.onnx --target M5 --schedule optimal     # with the order that keeps fewest bytes on chip
hexane explain net.onnx --target A14 --trace order.json    # for chrome://tracing or Perfetto: the order, with lanes for NE, PE and DMA
hexane explain net.onnx --target A14 --html net.html       # a page for a browser
hexane explain net.onnx --target A14 --json                # all records and decisions
```

In Python: `found = hx.explain(model, "A14", schedule="apple")`, then `print(found)`, `found.story("conv_3")`, `found.record()`.
It is an error, with a list of reasons, if no op of the network runs on the engine.

## Words and numbers

| word | meaning |
|---|---|
| engine | NE: multiply-accumulate array; PE: planar engine; DMA: transfers |
| peak, limit | of a partition: bytes live at a layer, before spills, and what closes it |
| packed | of a partition: bytes up to the highest offset in use, of the 2 MiB there are |
| allocation | one of the nine types ([schedule.md](schedule.md)) |
| offset | in on-chip memory, from the layer that touches the tensor first to the one that does last in its partition; "tile at": it is spilled, and only a tile is there at a time |
| moved | bytes from and to main memory: tensors loaded and stored, spills included, and the layer's weights, which are read once |
| operations | of products two for a multiply-add, padding included, as `hexane bench` counts them; of other layers the elements that they read or make, whichever are more; 0 for transfers |

The layers that dominate have the most operations, or move the most bytes. Operations for each byte say which of the two
is scarce. These numbers are counts; `hexane estimate` gives times and the bottleneck of each layer
([cost.md](cost.md)). The trace's unit is a share. The length of a bar is the layer's part of all operations (lanes NE,
PE and host) or of all bytes moved (lane DMA), in millionths. Layers follow each other in it, as measured on silicon; a
layer's transfers and its computation begin together.

A story has the phases in order: the op in the model, retarget, segment, lowering, fusion (or the barrier),
legalisation. Then, for each layer that came from it, the slots, order, partition, co-issue and weights follow, and for
each of its tensors the allocation, offset, banks and chain. Each line ends with its source. A story is found by the
node's place in the model: decisions carry that from pass to pass. Passes in front of the layers that simplify, or that
recognise attention, norms and GELU, record nothing. An op that they took in has no layer of its own.

## The page

`--html` writes one file that loads nothing. Its panels share one axis, the layers in the order they run. They show who
reads whom, the engine of each layer, and the bytes on chip with the limit of partitions and the capacity. The last one
is the allocator's picture: a rectangle for each tensor at its offset, from its first layer to its last. A click on a
layer or a rectangle opens the story. Filters (text, engine, segment, partition, stage) hold for the panels and for the
tables of layers and decisions; the address keeps the view. Ten thousand layers are drawn a part at a time.

## A block of a ResNet

Two convolutions of 3 x 3, the first with a stride of 2; a parallel convolution of 1 x 1; their sum, and a ReLU.
"""


def page() -> str:
    """The page's text."""
    parts = [PAGE]
    for chip in CHIPS:
        found = explain(block(), chip)
        stories = [str(found.story(layer.index)) for layer in found.program.layers]
        text = "\n\n".join([str(found), *stories])
        parts.append(f"\n### {chip}\n\n```\n{text}\n```\n")
    return "".join(parts)


def block() -> Graph:
    """The first block of the second stage of ResNet-18."""

    def conv(name: str, x: hx.Tensor, channels: int, size: int, stride: int) -> hx.Tensor:
        weight = np.random.default_rng(size).standard_normal((channels, x.shape[1], size, size)).astype(np.float32)
        with source_scope(name):
            return hx.conv(x, weight / 64, strides=(stride, stride), pad=size // 2)

    x = hx.input("x", (1, 64, 56, 56))
    y = conv("conv_1", x, 128, 3, 2)
    with source_scope("relu_1"):
        y = hx.relu(y)
    y, short = conv("conv_2", y, 128, 3, 1), conv("downsample", x, 128, 1, 2)
    with source_scope("add"):
        y = hx.add(y, short)
    with source_scope("relu_2"):
        y = hx.relu(y)
    return hx.graph({"y": y}, name="block")


if __name__ == "__main__":
    sys.stdout.write(page())
