"""The running statistics of batch norms after a step."""

from hexane.build import Tensor
from hexane.errors import Error
from hexane.graph import Value, topological
from hexane.ops import OPS, apply

STATISTICS = {1: "mean", 2: "variance"}  # the input of batch_norm_training, and the output that is its next version


def moved_statistics(loss: Tensor) -> list[tuple[Tensor, Tensor]]:
    """(param, its next value) for the running statistics of the loss's batch norms in training.

    If several batch norms share one, each begins with the result of the one before.

    Raises Error for a running statistic that is no param, and for one that is both mean and variance.
    """
    now: dict[Value, Value] = {}
    roles: dict[Value, int] = {}
    for node in topological([loss.value]):
        if node.op != "batch_norm_training":
            continue
        inputs = list(node.inputs)
        for i, what in STATISTICS.items():
            running = node.inputs[i]
            assert running is not None
            if (op := running.node.op) != "param":
                raise Error(f"[train.step] {what} of {node.where}: got {op}, need an hx.param, which the step updates")
            if roles.setdefault(running, i) != i:
                name = running.node.attrs["name"]
                raise Error(f"[train.step] {node.where}: got {name!r} as mean and as variance, need a param for each")
            inputs[i] = now.get(running, running)
        outputs = apply(OPS[node.op], inputs, node.attrs, node.sources)
        for i in STATISTICS:
            running = node.inputs[i]
            assert running is not None
            now[running] = outputs[i]
    return [(Tensor(old), Tensor(new)) for old, new in now.items()]
