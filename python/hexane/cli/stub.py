"""Generates the part of build.pyi that follows from the records of ops: `python -m hexane.cli.stub`."""

from pathlib import Path

from hexane.build import LEFT_OUT
from hexane.ops import USER_OPS
from hexane.ops.attributes import REQUIRED

PATH = Path(__file__).parents[1] / "build.pyi"
START = "# ---- derived from the records ----\n"
_KINDS = {
    "int": "int", "float": "float", "bool": "bool", "str": "str", "ints": "int | Sequence[int]",
    "floats": "float | Sequence[float]", "texts": "str | Sequence[str]", "dtype": "object", "graph": "object",
}  # fmt: skip


def stub() -> str:
    """Returns the text of build.pyi: unchanged up to START, then a typed function for each op."""
    lines = []
    for op in USER_OPS.values():
        optional = {n for n in op.inputs if n.endswith("?") or (op.name, n) in LEFT_OUT}
        parts = [f"{n.rstrip('?')}: Operand" + (" | None = None" if n in optional else "") for n in op.inputs]
        parts = [f"*{p.replace('*', '')} | Sequence[Operand]" if "*" in p else p for p in parts]
        if op.attrs and not any("*" in n for n in op.inputs):
            parts.append("*")
        for name, attr in (op.attrs or {}).items():
            parts.append(f"{name}: {_KINDS[attr.kind]}" + ("" if attr.default is REQUIRED else " = ..."))
        several = len(op.outputs) > 1 or op.outputs[0].endswith("*")
        result = "tuple[Tensor, ...]" if several else "Tensor"
        lines.append(f'def {op.name}({_formatted(op.name, parts, result)}) -> {result}:\n    """{op.doc}"""\n')
    return PATH.read_text(encoding="utf-8").partition(START)[0] + START + "\n" + "\n".join(lines)


def _formatted(name: str, parts: list[str], result: str) -> str:
    """Returns the parameters in lines of up to 120 characters, formatted like `ruff format`."""
    one_line = ", ".join(parts)
    if len(f"def {name}({one_line}) -> {result}:") <= 120:
        return one_line
    return f"\n    {one_line}\n" if len(one_line) <= 116 else "".join(f"\n    {part}," for part in parts) + "\n"


if __name__ == "__main__":
    PATH.write_text(stub(), encoding="utf-8")
