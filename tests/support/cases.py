"""The catalogue's own examples, as cases of tests."""

from hexane.ops import USER_OPS
from hexane.report.examples import arrays, feeds, graph_of

__all__ = ["CASES", "IDS", "arrays", "feeds", "graph_of"]

CASES = [(op, i) for op in USER_OPS.values() for i in range(len(op.cases))]
IDS = [f"{op.name}-{i}" for op, i in CASES]
