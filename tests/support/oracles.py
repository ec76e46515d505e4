"""Peers that run exported graphs: the onnx package's reference evaluator, and onnxruntime."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

from hexane.graph import Array, Graph, Node, Value
from hexane.ops import evaluate
from hexane.ops.records.quant import BYTES
from onnx_export import export, feeds_of
from onnx_models import onnxruntime_saturates

Arrays = dict[str, Array]


@dataclass(frozen=True)
class Oracle:
    name: str
    run: Callable[[onnx.ModelProto, Arrays], list[Array]]


# By the names onnxruntime gives them.
BROKEN_OPTIMIZERS = {
    "EliminateIdentity": "gives a value an output's name; later fusions still read the old one",
    "DoubleQDQPairsRemover": "makes one grid of two, on which other numbers lie",
    "ClipQuantRewrite": "takes scales to be positive",
    "ReluQuantRewrite": "likewise",
    "MatMulIntegerToFloatFusion": "makes products of dtypes that it has no kernel for",
}
# By the session options that switch them off.
BROKEN_FUSIONS = {
    "session.disable_quant_qdq": "a fused QLinearAdd moves sums by the zero point before it rounds: other ties"
}


def evaluator(proto: onnx.ModelProto, arrays: Arrays) -> list[Array]:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the mean of nothing
        return [np.asarray(a) for a in ReferenceEvaluator(proto).run(None, arrays)]


def runtime(level: "onnxruntime.GraphOptimizationLevel") -> Callable[[onnx.ModelProto, Arrays], list[Array]]:
    def run(proto: onnx.ModelProto, arrays: Arrays) -> list[Array]:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = level
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        for name in BROKEN_FUSIONS:
            options.add_session_config_entry(name, "1")
        session = onnxruntime.InferenceSession(
            proto.SerializeToString(), options, ["CPUExecutionProvider"], disabled_optimizers=list(BROKEN_OPTIMIZERS)
        )
        return list(session.run(None, arrays))

    return run


ORACLES = (
    Oracle("reference evaluator", evaluator),
    Oracle("onnxruntime", runtime(onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL)),
    Oracle("onnxruntime without optimisations", runtime(onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL)),
)


@dataclass(frozen=True)
class Flaw:
    """Nodes that an oracle (its name begins so) gets wrong or does not have: it is given their results. All else is
    compared."""

    oracle: str
    has: Callable[[Node], bool]
    reason: str


def computes(n: Node) -> bool:
    """A window, a product, a norm."""
    return n.op in ("conv", "conv_transpose", "quantized_conv", "quantized_matmul", "max_pool", "avg_pool", "matmul", "linear", "scaled_dot_product_attention",
                    "layer_norm", "rms_norm", "instance_norm", "batch_norm", "local_response_norm")  # fmt: skip


def empty(n: Node) -> bool:
    """Some operand has no elements."""
    return any(0 in v.shape for v in n.inputs if v is not None)


def dtype(n: Node, i: int = 0) -> str:
    """That of an input."""
    value = n.inputs[i]
    assert value is not None
    return value.dtype.name


def long(n: Node) -> bool:
    """x has many elements along the axis."""
    x = n.inputs[0]
    assert x is not None
    return x.shape[n.attrs["axis"]] > 31


def smaller(n: Node) -> bool:
    """The indices cover only a part of x along the other axes."""
    x, indices = n.inputs[0], n.inputs[1]
    assert x is not None
    assert indices is not None
    return any(a != b for i, (a, b) in enumerate(zip(x.shape, indices.shape, strict=True)) if i != n.attrs["axis"])


# Known flaws of onnx 1.23 and onnxruntime 1.31.
FLAWS = (
    Flaw("onnxruntime", lambda n: n.op == "silu", "has no Swish"),
    Flaw("onnxruntime", lambda n: n.op == "one_hot" and (dtype(n), n.types[0].dtype.name) != ("int64", "fp32"),
         "has OneHot for a few combinations of dtypes only"),
    Flaw("onnxruntime", lambda n: n.op in ("pixel_shuffle", "depth_to_space", "space_to_depth") and dtype(n) != "fp32",
         "moves blocks of floats only"),
    Flaw("onnxruntime", lambda n: n.op == "local_response_norm" and n.attrs["size"] % 2 == 0, "LRN: odd sizes only"),
    Flaw("onnxruntime", lambda n: computes(n) and empty(n), "refuses empty operands, leaves results unwritten, or dies"),
    Flaw("onnxruntime", lambda n: n.op == "instance_norm", "scales before it subtracts the mean, which little variance shows"),
    Flaw("onnxruntime", lambda n: n.op == "mean_variance_norm", "subtracts squares, which leaves a variance below 0"),
    Flaw("reference", lambda n: n.op == "mean_variance_norm", "subtracts squares, which cancels"),
    Flaw("onnxruntime", lambda n: n.op == "einsum" and "..." in n.attrs["equation"], "refuses ellipses that broadcast"),
    Flaw("reference", lambda n: n.op == "avg_pool" and max(n.attrs["dilations"]) > 1, "loses what dilated windows read"),
    Flaw("onnxruntime", lambda n: n.op == "gelu_tanh", "adds 1 to what is near -1"),
    Flaw("onnxruntime", lambda n: n.op in ("selu", "elu", "celu"), "subtracts 1 from what is near 1"),
    Flaw("onnxruntime", lambda n: n.op == "pow" and dtype(n).startswith(("int", "uint")),
         "computes powers of integers in doubles, whose overflow does not wrap"),
    Flaw("onnxruntime", lambda n: n.op == "pad" and empty(n), "refuses to wrap or reflect nothing"),
    Flaw("reference", lambda n: n.op == "conv_transpose" and n.attrs["groups"] > 1, "misplaces groups"),
    Flaw("reference", lambda n: n.op == "conv_transpose" and empty(n), "refuses empty operands"),
    Flaw("reference", lambda n: n.op == "local_response_norm", "sums one channel too few"),
    Flaw("reference", lambda n: n.op == "lp_norm" and n.attrs["p"] % 2, "sums without the absolute values"),
    Flaw("onnxruntime", lambda n: n.op == "lp_norm" and n.attrs["p"] > 2, "has the norms of 1 and 2 only"),
    Flaw("reference", lambda n: n.op == "one_hot" and n.types[0].dtype.kind == "bool", "has no OneHot of bool"),
    Flaw("reference", lambda n: n.op == "pad" and min((*n.attrs["begin"], *n.attrs["end"]), default=0) < 0,
         "refuses negative pads"),
    Flaw("reference", lambda n: n.op == "gather_along_axis" and smaller(n), "wants indices as large as x"),
    Flaw("reference", lambda n: n.op == "gather_along_axis" and long(n), "is limited to as many choices as np.choose takes"),
    Flaw("reference", lambda n: n.op == "max_pool" and (n.attrs["ceil_mode"] or any(n.attrs["pad"])), "loses windows"),
    Flaw("reference", lambda n: n.op == "max_pool" and dtype(n) in ("int8", "uint8"), "makes integers of NaN"),
    Flaw("reference", lambda n: n.op == "avg_pool" and n.attrs["ceil_mode"], "divides by the wrong count at the end"),
    Flaw("reference", lambda n: n.op == "flatten" and empty(n), "refuses empty tensors"),
    Flaw("reference", lambda n: n.op in ("quantized_matmul", "quantized_conv") and n.types[0].dtype in BYTES,
         "its QLinear ops move sums by the zero point before they round: other ties"),
    Flaw("onnxruntime", lambda n: n.op in ("quantized_matmul", "quantized_conv") and onnxruntime_saturates(),
         "adds pairs of products in int16 where x86 has no VNNI"),
    Flaw("reference", lambda n: n.op == "log_softmax", "takes the logarithm of a number that may be 0"),
    Flaw("reference", lambda n: n.op == "softsign" and not n.types[0].shape, "gives what is no array"),
)  # fmt: skip


def all_values(graph: Graph, graph_feeds: Arrays) -> dict[Value, Array]:
    """Every value of the graph, by the records."""
    known: dict[Value, Array] = {}
    for node in graph.nodes:
        if node.op == "input":
            results = [graph_feeds[str(node.attrs["name"])]]
        elif node.data is not None:
            results = [node.data]
        else:
            results = evaluate(node, [None if v is None else known[v] for v in node.inputs])
        known.update(zip(node.values, results, strict=True))
    return known


def ask(oracle: Oracle, graph: Graph, graph_feeds: Arrays, known: dict[Value, Array]) -> Arrays:
    """The graph's outputs as the oracle has them."""
    flaws = [f for f in FLAWS if oracle.name.startswith(f.oracle)]
    model = export(graph, lambda node: any(f.has(node) for f in flaws))
    results = oracle.run(model.proto, feeds_of(model, graph_feeds, known))
    return {port.name: a for port, a in zip(graph.outputs, results, strict=True)}
