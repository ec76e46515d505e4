"""Adds the docstrings under a dataclass's fields, which Python drops, to the docstring of the class, so that `help`
shows them."""

import ast
import inspect
from textwrap import dedent, indent
from typing import TypeVar

T = TypeVar("T")


def with_field_docs(cls: type[T]) -> type[T]:
    """The class with a docstring that describes each field. Unchanged if its source is not available."""
    try:
        (tree,) = ast.parse(dedent(inspect.getsource(cls))).body
    except (OSError, TypeError, SyntaxError):
        return cls
    assert isinstance(tree, ast.ClassDef)
    said = []
    for entry, after in zip(tree.body, tree.body[1:], strict=False):
        if (
            isinstance(entry, ast.AnnAssign)
            and isinstance(entry.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            head = f"{entry.target.id}: {ast.unparse(entry.annotation)}"
            said.append(f"{head}\n{indent(inspect.cleandoc(after.value.value), '    ')}")
    if said:
        cls.__doc__ = "\n\n".join([inspect.cleandoc(cls.__doc__ or ""), *said])
    return cls
