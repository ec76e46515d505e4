"""Prints the derived part of build.pyi: `python -m hexane.cli.stub`."""

import sys

from hexane.ops import USER_OPS
from hexane.ops.spec import REQUIRED

_KINDS = {
    "int": "int", "float": "float", "bool": "bool", "str": "str", "ints": "int | Sequence[int]",
    "floats": "float | Sequence[float]", "texts": "str | Sequence[str]", "dtype": "object",
}  # fmt: skip


def stub() -> str:
    """The text of build.pyi's derived part: a typed function for each op."""
    lines = []
    for op in USER_OPS.values():
        parts = [f"{n.rstrip('?')}: Operand" + (" | None = None" if n.endswith("?") else "") for n in op.inputs]
        parts = [f"*{p.replace('*', '')} | Sequence[Operand]" if "*" in p else p for p in parts]
        if op.attrs and not any("*" in n for n in op.inputs):
            parts.append("*")
        for name, attr in (op.attrs or {}).items():
            parts.append(f"{name}: {_KINDS[attr.kind]}" + ("" if attr.default is REQUIRED else " = ..."))
        several = len(op.outputs) > 1 or op.outputs[0].endswith("*")
        result = "tuple[Tensor, ...]" if several else "Tensor"
        lines.append(f'def {op.name}({", ".join(parts)}) -> {result}:\n    """{op.doc}"""\n')
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(stub())
