"""Ops that run other subgraphs, and ops on variables."""

from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.bodies import MOST_STEPS, Body, cond_op, is_long, loop_op, truth
from hexane.importers.coreml.known import ComputedError, deciding_inputs
from hexane.importers.tflite.registry import Context, reads


def _truth(value: Value) -> bool | None:
    """Returns a constant condition as a bool, or None for a computed value."""
    if value.node.op != "const" or value.node.data is None:
        return None
    if value.type.size != 1:
        raise Error(f"got a condition of {value.type.size} elements, need one")
    return bool(value.node.data.reshape(-1)[0])


@reads("IF")
def if_else(c: Context) -> list[Value]:
    """Imports one branch if the condition is a constant. For a computed condition, writes an op that computes only the
    chosen branch, or for cheap branches a select of both results."""
    condition, arguments = c.x(0), [c.x(i) for i in range(1, len(c.op.inputs))]
    known = _truth(condition)
    branches = [int(c.o["then_subgraph_index"]), int(c.o["else_subgraph_index"])]
    if known is not None:
        return c.translator.inline(branches[0 if known else 1], arguments)
    one = truth(c.b, condition)
    bodies, results = [Body() for _ in branches], []
    try:
        for number, body in zip(branches, bodies, strict=True):
            with c.translator.body(body):
                results.append(c.translator.inline(number, [_input(c, body, v) for v in arguments]))
        if any(v in c.translator.resources for values in results for v in values):
            raise Error("got a branch that gives a variable, need tensors")
        if (made := cond_op(c.b, one, bodies, results)) is not None:
            return list(made)
    except Error:
        pass  # computing both branches may still work; if not, it raises an error
    before = dict(c.translator.states)
    first, second = (c.translator.inline(n, arguments) for n in branches)
    if any(c.translator.states[n] is not v for n, v in before.items()) or len(before) != len(c.translator.states):
        raise Error("got a branch that writes a variable, need a condition that is known, or no variables")
    if any(x.type != y.type for x, y in zip(first, second, strict=True)):
        raise Error("got branches with results of different shapes, need a condition that is known")
    return [x if x is y else c.b.select(one, x, y) for x, y in zip(first, second, strict=True)]


def _input(c: Context, body: Body, value: Value) -> Value:
    """Returns a body's input for a value of the surrounding graph. Resources are not inputs, because they are known by
    name."""
    return value if value in c.translator.resources else body.capture(value)


@reads("WHILE", "STABLEHLO_WHILE")
def while_loop(c: Context) -> list[Value]:
    """Unrolls a loop while its condition is a constant. A loop with a computed condition, or of many operators, becomes
    one op."""
    start = [c.x(i) for i in range(len(c.op.inputs))]
    numbers = int(c.o["cond_subgraph_index"]), int(c.o["body_subgraph_index"])
    graphs = c.translator.file.subgraphs
    operators = sum(len(graphs[n].operators) for n in numbers if 0 <= n < len(graphs))
    values, may_be_one = start, True
    for step in range(MOST_STEPS):
        (going,) = c.translator.inline(numbers[0], values)
        known = _truth(going)
        if known is False:
            return values
        if known is None:
            try:
                return _one_loop(c, numbers, start, going if values is start else None)
            except Error as error:
                raise ComputedError(str(error), deciding_inputs(going)) from None  # names possible constants
        if may_be_one and is_long(step, operators):
            try:
                return _one_loop(c, numbers, start, None)
            except Error:
                may_be_one = False
        values = c.translator.inline(numbers[1], values)
    return _one_loop(c, numbers, start, None)


def _one_loop(c: Context, numbers: tuple[int, int], start: list[Value], going: Value | None) -> list[Value]:
    """Writes one op for a loop whose trip count depends on data. going: the condition of the first iteration; None
    means true."""
    carried = [v for v in start if v not in c.translator.resources]
    body = Body.of_loop(carried)
    given = iter(body.given[2:])
    arguments = [v if v in c.translator.resources else next(given) for v in start]
    with c.translator.body(body):
        found = c.translator.inline(numbers[1], arguments)
        (condition,) = c.translator.inline(numbers[0], found)
    if any(v in c.translator.resources and v is not w for v, w in zip(start, found, strict=True)):
        raise Error("got a loop that exchanges variables, need the same one in every round")
    results = [w for v, w in zip(start, found, strict=True) if v not in c.translator.resources]
    first = None if going is None else truth(c.b, going)
    made = iter(loop_op(c.b, body, carried, [truth(c.b, condition), *results], None, first))
    return [v if v in c.translator.resources else next(made) for v in start]


@reads("CALL")
def call(c: Context) -> list[Value]:
    return c.translator.inline(int(c.o["subgraph"]), [c.x(i) for i in range(len(c.op.inputs))])


@reads("STABLEHLO_COMPOSITE")
def composite(c: Context) -> list[Value]:
    """Inlines the composite's decomposition."""
    number = int(c.o["decomposition_subgraph_index"])
    return c.translator.inline(number, [c.x(i) for i in range(len(c.op.inputs))])


@reads("CALL_ONCE")
def call_once(c: Context) -> list[Value]:
    """Runs the subgraph at import, to assign the initial contents of variables."""
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
