"""Updates of the running statistics of batch norms in a training step."""

from hexane.build import Tensor
from hexane.errors import Error
from hexane.graph import Value, topological
from hexane.ops import OPS, apply

# By input index of batch_norm_training; the output with this index is the updated one.
STATISTICS = {1: "mean", 2: "variance"}


def moved_statistics(loss: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Returns pairs (param, updated value) for the running statistics of the batch norms that the loss depends on.

    If several batch norms share a statistic, each updates the result of the previous one.

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
