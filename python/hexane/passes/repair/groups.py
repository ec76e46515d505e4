"""Recognises group normalisation written with other ops.

torch.onnx.export writes nn.GroupNorm as an instance norm of each group between reshapes, then a product and a sum.
coremltools writes it with means over (2, 3, 4) of [N, G, C / G, H, W]. A group flattened to one row may be wider than a
chip supports.
"""

import numpy as np

from hexane.graph import Array, Node, Value, constant
from hexane.ops import simpler
from hexane.ops.match import Found, made_by, op
from hexane.ops.predicates import only_along
from hexane.ops.rewriter import Rewriter
from hexane.passes.fuse.fuse_layer_norm import CENTRED, applied, normalised, over_root, squared
from hexane.passes.needs import has
from hexane.passes.repair.form import Form

MOST_READ = 1 << 24  # the most numbers per batch entry over which a constant is compared


def written_out(m: Found) -> Value | None:
    """(%v - mean(%v)) / sqrt(mean((%v - mean(%v))^2) + e)  ->  layer_norm(%v), for a view %v with groups as rows, or
    for whole batch entries"""
    x = m.bound["x"]
    view, axes = made_by(x, "reshape"), m.bound["mean"].node.attrs["axes"]
    of_view = view is not None and view.inputs[0] is not None and _groups_of(view.inputs[0], x, axes) is not None
    if not of_view and not _is_of_items(x, axes):
        return None
    values = normalised(m, "layer_norm")
    return None if values is None else values[0]


def viewed(m: Found) -> Value | None:
    """reshape(instance_norm(reshape(%x : [N, C, H, W]) : [N, G, C / G * H * W]) * %g + %b)  ->  group_norm(%x, %g, %b)

    Applies to a layer norm too. %g and %b are constants with one number per channel.
    """
    steps, value = list[tuple[str, Array]](), m.alone(m.node.inputs[0], "layer_norm", "instance_norm", "mul", "add")
    while value is not None and value.op in ("mul", "add"):
        x, by = value.inputs if made_by(value.inputs[1], "const") else value.inputs[::-1]
        if by is None or by.node.data is None or x is None or x.shape != value.types[0].shape:
            return None
        steps.append((value.op, by.node.data))
        value = m.alone(x, "layer_norm", "instance_norm", "mul", "add")
    view = None if value is None else made_by(value.inputs[0], "reshape")
    x = None if view is None else view.inputs[0]
    if value is None or view is None or x is None or x.shape != m.node.types[0].shape:
        return None
    shape = view.types[0].shape
    groups = _groups_of(x, view.values[0], _axes_of(value))
    if groups is None or (params := _own_params(value)) is None:
        return None
    numbers = {"mul": np.ones(x.shape[1]), "add": np.zeros(x.shape[1])}
    for kind, data in (*params, *steps[::-1]):
        each = _of_channels(data, shape, x.shape)
        if each is None:
            return None
        if kind == "mul":
            numbers = {name: known * each for name, known in numbers.items()}
        else:
            numbers["add"] = numbers["add"] + each
    gamma, beta = (_param(numbers[kind], kind == "mul", m, x) for kind in ("mul", "add"))
    return m.make("group_norm", [m.now(x), gamma, beta], num_groups=groups, epsilon=value.attrs["epsilon"])[0]


def _axes_of(norm: Node) -> tuple[int, ...]:
    if norm.op == "layer_norm":
        return tuple(norm.attrs["axes"])
    return tuple(range(2, norm.types[0].rank)) if norm.attrs["layout"] == "nchw" else ()


def _groups_of(x: Value, view: Value, axes: tuple[int, ...]) -> int | None:
    """Returns the number of groups if each row of the view is a group of channels of one batch entry, else None."""
    rank, rows = view.type.rank, view.type.size
    if x.type.rank < 3 or 0 in x.shape or not axes or axes != tuple(range(rank - len(axes), rank)):
        return None
    for a in axes:
        rows //= view.shape[a]
    groups, rest = divmod(rows, x.shape[0])
    return groups if groups and not rest and x.shape[1] % groups == 0 else None


def _own_params(norm: Node) -> list[tuple[str, Array]] | None:
    """Returns the gamma and beta of a norm as a factor and a summand of its result, or None if one is computed."""
    result, trailing = list[tuple[str, Array]](), norm.types[0].rank - 2
    for kind, value in zip(("mul", "add"), norm.inputs[1:], strict=True):
        if value is None:
            continue
        if value.node.op != "const" or value.node.data is None:
            return None
        data = value.node.data
        result.append((kind, data.reshape(-1, *[1] * trailing) if norm.op == "instance_norm" else data))
    return result


def _of_channels(data: Array, view: tuple[int, ...], x: tuple[int, ...]) -> Array | None:
    """Returns one number per channel of x, if the constant operand of the view is uniform in each channel, else
    None."""
    size, padded = int(np.prod(view)), (1,) * (len(view) - data.ndim) + data.shape
    if data.size == 1:
        return np.broadcast_to(data.reshape(()), (x[1],)).astype(np.float64)
    if view[0] != x[0] or padded[0] != 1 or size // x[0] > MOST_READ:
        return None
    each = np.broadcast_to(data.reshape(padded)[0], view[1:]).reshape(x[1], -1)
    return each[:, 0].astype(np.float64) if (each == each[:, :1]).all() else None


def _param(numbers: Array, is_factor: bool, m: Found, x: Value) -> Value | None:
    if (numbers == (1 if is_factor else 0)).all():
        return None
    return constant(numbers.astype(x.dtype.numpy), m.node.sources)


def affine(m: Found) -> Value | None:
    """group_norm(%x) * %g + %b  ->  group_norm(%x, %g, %b), for constants with one number per channel"""
    maker, other = m["norm"].node, m["other"]
    place = 1 if m.node.op == "mul" else 2
    if maker.op != "group_norm" or any(maker.inputs[place:]) or other.node.op != "const" or other.node.data is None:
        return None
    shape = maker.types[0].shape
    if not only_along(other, 1, shape):
        return None
    param = constant(other.node.data.reshape(shape[1]), other.node.sources)
    return m.absorb(maker, place, param, (shape[1],))[0]


def of_instances(m: Found) -> Value | None:
    """instance_norm(%x : [N, C, H, W])  ->  group_norm(%x, num_groups=C), for tensors that make a norm layer slow"""
    x, gamma, beta = m.inputs
    if x is None or x.type.rank < 3 or x.type.size <= simpler.SMALL_NORM or m.node.attrs["layout"] != "nchw":
        return None
    attrs = {"num_groups": x.shape[1], "epsilon": m.node.attrs["epsilon"]}
    return m.make("group_norm", [x, gamma, beta], **attrs)[0]


def of_items(m: Found) -> Value | None:
    """layer_norm(%x : [N, C, H, W], %g, %b, axes=(1, 2, 3))  ->  group_norm(%x, num_groups=1) * %g + %b, for
    tensors that make a norm layer slow"""
    x, gamma, beta = m.inputs
    if x is None or not _is_of_items(x, m.node.attrs["axes"]):
        return None
    b = Rewriter(*m.node.sources)
    (y,) = m.make("group_norm", [x, None, None], num_groups=1, epsilon=m.node.attrs["epsilon"])
    y = y if gamma is None else b.mul(y, gamma)
    return y if beta is None else b.add(y, beta)


def _is_of_items(x: Value, axes: tuple[int, ...]) -> bool:
    return x.type.rank >= 3 and x.type.size > simpler.SMALL_NORM and axes == tuple(range(1, x.type.rank))


VIEWED = (
    Form("norm of groups written out", over_root(CENTRED, squared("centred")), written_out, quiet=True),
    Form("norm of a view", op("reshape"), viewed, quiet=True, needs=has("layer_norm|instance_norm")),
)
FORMS = (
    *VIEWED,
    Form("gain of groups", applied("mul"), affine, quiet=True),
    Form("offset of groups", applied("add"), affine, quiet=True),
    Form("large instance norm", op("instance_norm"), of_instances, quiet=True),
    Form("large layer norm", op("layer_norm"), of_items, quiet=True),
)
