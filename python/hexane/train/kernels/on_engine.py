"""Marks the engine's programs in a training step."""

from hexane import build as hx
from hexane.build import Tensor
from hexane.errors import Error
from hexane.graph import Graph, Node, Value
from hexane.graph.origins import source_scope
from hexane.passes.retarget.marked import mark_programs
from hexane.runtime.collector import collector_paused
from hexane.train.kernels.channels_first import shaped
from hexane.train.kernels.groups import Variant
from hexane.train.kernels.kernel import Kernel, find_kernels


def on_engine(step: Graph, variant: Variant = "cpu-head") -> Graph:
    """Returns the training step with each program of `hx.train.kernels` as one segment of the engine, if compiled for a
    chip: with one input and one output (batch, channels, 1, tokens) in fp16, and weights read from the states. The host
    runs all other ops in the model's dtype.

    Compiling it for a chip warns once, naming programs that the engine cannot run and weight products in no program,
    with reasons. `decisions` of the returned graph list the weight products in no program.

    The graph computes `step`'s results, in another layout. variant: see `hx.train.kernels`. Raises Error for a step
    without programs.
    """
    with collector_paused():
        kernels, left = find_kernels(step, baked=False, variant=variant)
        if not kernels:
            raise Error(
                "[train.on_engine] got a step without programs of the engine, need a residual network of tokens"
            )
        return _Cut(kernels).of(step).decided(*left)


class _Cut:
    """Rewrites a step: each program's nodes are replaced by the program's graph."""

    def __init__(self, kernels: tuple[Kernel, ...]) -> None:
        self.maker = {tap.value: kernel for kernel in kernels for tap in kernel.outputs}
        self.now: dict[Value, Value] = {}
        self.ends: dict[str, tuple[Value, Value]] = {}

    def of(self, step: Graph) -> Graph:
        for root in step.roots:
            self._make(root)
        return mark_programs(step.replace(self.now), self.ends)

    def _make(self, root: Value) -> None:
        """Writes the replacements of a value and of all its ancestors."""
        stack: list[Value] = [root]
        begun: set[str] = set()
        while stack:
            value = stack[-1]
            kernel = self.maker.get(value)
            if value in self.now or not (kernel or value.node.inputs):
                stack.pop()
                continue
            reads = [tap.value for tap in kernel.inputs] if kernel else [v for v in value.node.inputs if v is not None]
            missing = [v for v in reads if v not in self.now and (v in self.maker or v.node.inputs)]
            if not missing:
                self._write(value.node, kernel)
                stack.pop()
            elif kernel and kernel.name in begun:
                raise Error(f"[train.on_engine] {kernel.name}: got a program that needs its own results")
            else:
                begun |= {kernel.name} if kernel else set()
                stack += missing

    def _write(self, node: Node, kernel: Kernel | None) -> None:
        if kernel is None:
            inputs = tuple(None if v is None else self.now.get(v, v) for v in node.inputs)
            changed = node if inputs == node.inputs else node.with_inputs(inputs)
            self.now |= dict(zip(node.values, changed.values, strict=True))
            return
        with source_scope(kernel.name):
            self._write_program(kernel)

    def _write_program(self, kernel: Kernel) -> None:
        (x,) = kernel.graph.inputs
        batch, _, _, tokens = x.shape
        parts = []
        for tap in kernel.inputs:
            order = [tap.place.order.index(i) for i in range(len(tap.place.order))]
            tensor = hx.transpose(Tensor(self.now.get(tap.value, tap.value)), perm=order)
            parts.append(shaped(tensor, (batch, tap.channels, 1, tokens)))
        begin = (hx.concat(*parts, axis=1) if len(parts) > 1 else parts[0]).value
        became = {x: begin}
        inlined = kernel.graph.rewrite(lambda node, inputs: None, became=became)
        end = inlined.outputs[0].value
        self.ends[kernel.name] = (begin, end)
        start = 0
        for tap in kernel.outputs:
            part = Tensor(end)[:, start : start + tap.channels] if len(kernel.outputs) > 1 else Tensor(end)
            value = hx.transpose(hx.reshape(part, shape=tap.place.shape), perm=tap.place.order)
            self.now[tap.value] = value.value
            start += tap.channels
