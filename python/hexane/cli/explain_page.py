"""The example in docs/explain.md: a block of a ResNet on two chips."""

import numpy as np

from hexane import build as hx
from hexane.graph import Graph
from hexane.graph.origins import source_scope
from hexane.report.explain import explain

CHIPS = ("A14", "M5")


def what_explain_prints() -> str:
    """Returns the report and the story of each layer for each chip."""
    parts = []
    for chip in CHIPS:
        explanation = explain(block(), chip)
        stories = [str(explanation.story(layer.index)) for layer in explanation.program.layers]
        text = "\n\n".join([str(explanation), *stories])
        parts.append(f"### {chip}\n\n```\n{text}\n```\n")
    return "\n".join(parts)


def block() -> Graph:
    """Returns the first block of the second stage of ResNet-18."""

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
