"""Whether a model fits into memory, in whole tensors or row by row, and which layers need most."""

from dataclasses import asdict, dataclass
from typing import Any

from hexane.errors import Error
from hexane.printer import size_text
from hexane.program import Program
from hexane.runtime.compile import compile
from hexane.runtime.memory import Memory, operand_bytes
from hexane.runtime.model import Model

MOST_LAYERS = 5


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """A layer, its kernel, and the bytes of the arena that it reads and writes as whole tensors."""

    layer: str
    kernel: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Fit:
    """Bytes that a model takes on one thread. whole, streamed: of arena, in whole tensors and at one row at a time. scratch: of
    kernels, beside the arena. inputs, outputs, weights: beside both. layers: those that read and write most. sram: what there is for
    arena and scratch, None where nobody said."""

    sram: int | None
    whole: int
    streamed: int
    scratch: int
    inputs: int
    outputs: int
    weights: int
    layers: tuple[LayerBytes, ...]

    @property
    def fits(self) -> bool | None:
        """Whether some way of computing it fits; None where nobody said into what."""
        return None if self.sram is None else self.streamed + self.scratch <= self.sram

    @property
    def verdict(self) -> str:
        """In a line."""
        whole, streamed = self.whole + self.scratch, self.streamed + self.scratch
        if self.sram is None:
            return f"needs {streamed} bytes row by row, {whole} in whole tensors"
        if whole <= self.sram:
            return f"fits {self.sram} bytes in whole tensors, which need {whole}"
        if streamed <= self.sram:
            return f"fits {self.sram} bytes row by row; whole tensors need {whole}"
        return f"does not fit {self.sram} bytes: needs {streamed} row by row, {streamed - self.sram} more; {whole} in whole tensors"

    def to_json(self) -> dict[str, Any]:
        """All of it, for programs."""
        return {"verdict": self.verdict, "fits": self.fits, **asdict(self)}

    def __str__(self) -> str:
        lines = [self.verdict]
        for name in ("whole", "streamed", "scratch", "inputs", "outputs", "weights"):
            lines.append(f"  {name:9} {size_text(getattr(self, name)):>10}  {getattr(self, name)}")
        lines += ["  layers that read and write most:"]
        lines += [f"    {size_text(one.bytes):>10}  {one.layer} ({one.kernel})" for one in self.layers]
        return "\n".join(lines) + "\n"


def fit(model: Any, *, memory: Memory | None = None, **options: Any) -> Fit:
    """What a model takes on this CPU and one thread, and whether it fits; options: those of `compile`, beside threads and target.

    Raises Error as `compile` does, and for a model of open shapes.
    """
    whole, streamed = (compile(model, target="host", threads=1, stream_rows=rows, **options) for rows in (0, 1))
    if not isinstance(whole, Model) or not isinstance(streamed, Model) or whole.program is None:
        raise Error("[fit] got a model of open shapes, need fixed ones: input_shapes says which")
    program = whole.program
    return Fit(
        None if memory is None else memory.bytes,
        whole.memory["arena"],
        streamed.memory["arena"],
        streamed.memory["scratch"],
        sum(port.view.type.bytes for port in program.inputs),
        sum(port.view.type.bytes for port in program.outputs),
        whole.memory.get("weights", 0),
        _largest(program),
    )


def _largest(program: Program) -> tuple[LayerBytes, ...]:
    layers = [LayerBytes(s.node.where, s.kernel, operand_bytes(program, i)) for i, s in enumerate(program.steps)]
    return tuple(sorted(layers, key=lambda one: -one.bytes)[:MOST_LAYERS])
