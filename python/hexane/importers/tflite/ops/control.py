"""Other subgraphs, and variables."""

from hexane.dtypes import BOOL
from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.coreml.known import known_array
from hexane.importers.tflite.registry import Context, reads

MOST_ROUNDS = 4096  # of a loop


def _truth(value: Value) -> bool | None:
    """Of a constant of one element; None for a value that is computed when the model runs."""
    if value.node.op != "const" or value.node.data is None:
        return None
    if value.type.size != 1:
        raise Error(f"got a condition of {value.type.size} elements, need one")
    return bool(value.node.data.reshape(-1)[0])


@reads("IF")
def if_else(c: Context) -> list[Value]:
    """One branch of a condition that is known; else both, and a choice between their results."""
    condition, arguments = c.x(0), [c.x(i) for i in range(1, len(c.op.inputs))]
    known = _truth(condition)
    branches = [int(c.o["then_subgraph_index"]), int(c.o["else_subgraph_index"])]
    if known is not None:
        return c.translator.inline(branches[0 if known else 1], arguments)
    before = dict(c.translator.states)
    first, second = (c.translator.inline(n, arguments) for n in branches)
    if any(c.translator.states[n] is not v for n, v in before.items()) or len(before) != len(c.translator.states):
        raise Error("got a branch that writes a variable, need a condition that is known, or no variables")
    b = c.b
    if any(x.type != y.type for x, y in zip(first, second, strict=True)):
        raise Error("got branches with results of different shapes, need a condition that is known")
    if condition.dtype is not BOOL or condition.type.size != 1:
        raise Error(f"got the condition {condition.type}, need one truth")
    one = b.reshape(condition, shape=())
    return [b.select(one, x, y) for x, y in zip(first, second, strict=True)]


@reads("WHILE", "STABLEHLO_WHILE")
def while_loop(c: Context) -> list[Value]:
    """A loop whose rounds are known, unrolled. Inputs of few elements that decide the end have to be known."""
    values = [c.x(i) for i in range(len(c.op.inputs))]
    condition, body = int(c.o["cond_subgraph_index"]), int(c.o["body_subgraph_index"])
    for _ in range(MOST_ROUNDS):
        (going,) = c.translator.inline(condition, values)
        if not known_array(going).reshape(-1)[0]:
            return values
        values = c.translator.inline(body, values)
    raise Error(f"got a loop of more than {MOST_ROUNDS} rounds, need fewer")


@reads("CALL")
def call(c: Context) -> list[Value]:
    return c.translator.inline(int(c.o["subgraph"]), [c.x(i) for i in range(len(c.op.inputs))])


@reads("STABLEHLO_COMPOSITE")
def composite(c: Context) -> list[Value]:
    """What it stands for."""
    number = int(c.o["decomposition_subgraph_index"])
    return c.translator.inline(number, [c.x(i) for i in range(len(c.op.inputs))])


@reads("CALL_ONCE")
def call_once(c: Context) -> list[Value]:
    """Variables begin as it says; it is run when the model is read."""
    c.translator.initialise(int(c.o["init_subgraph_index"]))
    return []


@reads("VAR_HANDLE")
def var_handle(c: Context) -> Value:
    return c.translator.handle(f"{c.o['container']}/{c.o['shared_name']}".removeprefix("/") or "variable")


@reads("READ_VARIABLE")
def read_variable(c: Context) -> Value:
    return c.translator.read_variable(c.x(0), c.out())


@reads("ASSIGN_VARIABLE")
def assign_variable(c: Context) -> list[Value]:
    c.translator.assign_variable(c.x(0), c.x(1), c.b.sources)
    return []
