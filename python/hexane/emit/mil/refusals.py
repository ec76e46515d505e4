"""Finds ops that a chip runs but a program cannot contain, because no port of a program has their dtypes."""

from collections.abc import Mapping, Sequence

from hexane.dtypes import BOOL
from hexane.graph import Graph, Node
from hexane.validate.mil_program import is_port, no_port


class InFiles:
    """Programs in files. Netplists do not go through MIL's checks, so this class checks their ports."""

    def refused(self, graph: Graph, nodes: Sequence[Node]) -> Mapping[int, str]:
        result = {}
        for node in nodes:
            read = (v for v in node.inputs if v is not None and v.node.op not in ("const", "param"))
            ways = [*((v, "comes from outside") for v in read), *((v, "goes outside") for v in node.values)]
            wrong = next((no_port(v.type, way) for v, way in ways if not is_port(v.type)), "")
            if wrong:
                result[id(node)] = wrong
        return result


class Loaded:
    """Programs that a device has loaded, which read params and states in place, as they are stored."""

    def refused(self, graph: Graph, nodes: Sequence[Node]) -> Mapping[int, str]:
        result = {}
        for node in nodes:
            for value in node.inputs:
                if value is not None and value.dtype is BOOL and value.node.op in ("param", "state", "write_state"):
                    result[id(node)] = no_port(value.type, "comes from outside")
        return result
