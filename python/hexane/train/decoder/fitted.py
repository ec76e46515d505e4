"""Fits the scales of a decoder's encoded weights to the activations of a text."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from hexane.build import Tensor
from hexane.compression import Weight
from hexane.compression.fit import Fitted, fit_scales
from hexane.graph import Array, Graph
from hexane.options import Options
from hexane.runtime import Model, compile
from hexane.train.decoder.config import LlamaConfig
from hexane.train.decoder.one_token import block


def text_graph(config: LlamaConfig, weights: Mapping[str, Array | Tensor], count: int) -> Graph:
    """Returns the graph tokens (count,), position (1,) int32 -> logits after each token. position: of the first token.
    A graph of one token names its input `token`."""
    short = replace(config, seq=count)
    return block(short, weights, count, count, every=True)


def fit_to_text(
    graph: Graph, chosen: Mapping[Weight, str], ids: Sequence[int], options: Options
) -> dict[Weight, Fitted]:
    """Returns the weights whose block scales improve when they are fitted to these tokens. graph: from `text_graph` or
    `one_token`. The tokens are split into texts of the graph's length. Raises Error for activations that are not
    finite."""
    name, count = next(
        (value.node.attrs["name"], value.shape[0])
        for value in graph.inputs
        if value.node.attrs["name"] in ("tokens", "token")
    )
    texts = [np.array(ids[at : at + count], np.int32) for at in range(0, len(ids) - count + 1, count)]
    options = replace(options, compress=None)

    def run(changed: Graph) -> Sequence[Sequence[Array]]:
        net = compile(changed, options)
        assert isinstance(net, Model)
        names = [port.name for port in changed.outputs]
        results = []
        for text in texts:
            net.reset_state()
            given = {name: text, "position": np.zeros(1, np.int32)}
            got = net(**{port.name: given[port.name] for port in net.inputs})
            rows = got if isinstance(got, dict) else {names[0]: got}
            results.append([np.asarray(rows[output]) for output in names])
        return results

    return fit_scales(graph, chosen, run, options.num_threads) if texts else {}
