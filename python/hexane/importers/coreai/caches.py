"""Finds in-place updates of states: a `slice_update` of a state whose result is written back to the state."""

from collections.abc import Iterator

from hexane.importers.coreai.operations import Body, Operation, Result, walk

READ, WRITE, UPDATE = "dataflow.read_handle_v1", "dataflow.write_handle_v1", "primitive.slice_update_v1"


def updates_in_place(body: Body) -> dict[int, Result]:
    """Returns the state that each in-place update changes, by the update's offset in the file.

        c = read(s); d = slice_update(c, .., row); write(s, d)

    No other operation may read or write the state s between this read and the write, because the state changes at the
    update. Updates within loop bodies are not found, because a loop repeats them.
    """
    place = {id(operation): i for i, operation in enumerate(body.operations)}
    maker = {result: operation for operation in body.operations for result in operation.results}
    states: dict[int, Result] = {}
    for write in body.operations:
        if write.name != WRITE or len(write.operands) < 2:
            continue
        state, steps = write.operands[0], list(_steps(write.operands[1], maker))
        if not steps or steps[-1].name != READ or steps[-1].operands[:1] != (state,):
            continue
        between = body.operations[place[id(steps[-1])] + 1 : place[id(write)]]
        if not any(state in inner.operands for operation in between for inner in _with_bodies(operation)):
            states.update((step.offset, state) for step in steps[:-1])
    return states


def _steps(result: Result, maker: dict[Result, Operation]) -> Iterator[Operation]:
    """Yields a chain of updates, the last update first, and then the operation whose result the chain updates."""
    operation = maker.get(result)
    while operation is not None and operation.operands:
        yield operation
        if operation.name != UPDATE:
            return
        operation = maker.get(operation.operands[0])


def _with_bodies(operation: Operation) -> Iterator[Operation]:
    yield operation
    for body in operation.bodies:
        yield from walk(body)
