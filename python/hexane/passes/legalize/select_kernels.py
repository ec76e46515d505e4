"""Replaces ops by the ops that describe their kernels, and adds transposes if a kernel has another layout."""

from hexane.graph import Graph, Node, Value, make_node
from hexane.ops import KERNEL_FORMS, OPS, apply
from hexane.passes.layout.channels_last import in_layout
from hexane.targets import Target


def select_kernels(graph: Graph, target: Target) -> Graph:
    """conv(%x, %w) {layout=nchw}  ->  transpose(cpu.conv(transpose(%x) {perm=(0, 2, 3, 1)}, %w) {layout=nhwc}) {perm=(0, 3, 1, 2)}

    An op becomes its kernel's op if the kernel has more attributes than the user's op. If the kernel does not support
    the op's layout, its operand and its result are transposed.
    """  # noqa: E501

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        form = KERNEL_FORMS.get(node.op)
        layout = node.attrs.get("layout")
        if layout is not None and layout not in target.kernels.reads(OPS[node.op].kernel):
            other = "nhwc" if layout == "nchw" else "nchw"
            op, attrs = OPS[node.op] if form is None else form, {**node.attrs, "layout": other}
            return in_layout(other, node, inputs, lambda operands: apply(op, operands, attrs, node.sources)[0])
        if form is None:
            return None
        return make_node(form.name, inputs, {**node.attrs, "epilogue": ()}, node.types, node.sources).values

    return graph.rewrite(change)
