"""Finds the layers of the engine that a node becomes, in the form that the rules of layers check."""

from typing import Any

from hexane.errors import Error
from hexane.graph import Node
from hexane.lowering.one_node import lower_node
from hexane.ops import OPS
from hexane.ops.recording import IgnoredError
from hexane.ops.spec import LayerCall
from hexane.validate.verdict_cache import MOST_KNOWN

# Ops that are always exactly one layer of the engine.
KEPT = {"scaled_dot_product_attention": "anec.sdpa", "linear": "anec.linear"}
_calls_of: dict[Any, tuple[LayerCall, ...] | str] = {}


def layer_calls(node: Node, constant: tuple[bool, ...], key: Any) -> tuple[LayerCall, ...] | str:
    """The layers of a node in the form that rules check, or the reason why there are none."""
    known = _calls_of.get(key)
    if known is None:
        if len(_calls_of) >= MOST_KNOWN:
            _calls_of.clear()
        try:
            layers = [node] if node.op in KEPT else lower_node(node, constant)
            records = [(OPS[KEPT.get(layer.op, layer.op)], layer) for layer in layers]
            known = tuple([op.call(layer) for op, layer in records if op.call is not None])
        except IgnoredError:
            raise
        except Error as error:
            known = str(error).removeprefix(f"[{node.where}] ")
        _calls_of[key] = known
    return known
