"""The operands that each kernel of a target takes. Among the files of targets, only this one asks the C++ library."""

from collections.abc import Sequence
from functools import lru_cache

from hexane import _core
from hexane.errors import Error

DtypeNames = Sequence[str | None]


# The kernel "program" runs a device's program; the C++ list of CPU kernels does not have it.
_PROGRAM: "_core.KernelRow" = {
    "name": "program", "dtypes": "*...->*...", "family": "any", "attrs": "", "attrs_bytes": 0, "accepts": "strided",
    "reads_ring": False, "packs": False,
}  # fmt: skip


class Kernels:
    """The kernels of this library for one family of arithmetic, including family "any"."""

    def __init__(self, family: str) -> None:
        self.family = family
        rows = [row for row in _core.kernels() if row["family"] in (family, "any")]
        self._packing = {row["name"] for row in rows if row["packs"]}
        self._rows = {row["name"]: row for row in rows}
        self._rows["program"] = _PROGRAM

    def accepts(self, kernel: str) -> str:
        """The strides that the kernel's operands may have: "strided": any; "rows": the innermost axis is dense;
        "dense": no gaps."""
        return str(self._row(kernel)["accepts"])

    def layout(self, kernel: str) -> str:
        """The layout string of the kernel's attribute struct."""
        return str(self._row(kernel)["attrs"])

    def reads(self, kernel: str) -> tuple[str, ...]:
        """The layouts in which the kernel reads images: channels last, and also channels first if it has an attribute
        for the layout."""
        return ("nchw", "nhwc") if "layout:" in self.layout(kernel) else ("nhwc",)

    def reads_ring(self, kernel: str) -> bool:
        """True if the kernel can read its first input from a ring buffer."""
        return self._row(kernel)["reads_ring"]

    def packs(self, kernel: str) -> bool:
        """True if the kernel packs non-constant inputs 1 and 2 of some dtypes before it computes."""
        return kernel in self._packing

    def has(self, kernel: str, inputs: DtypeNames, outputs: DtypeNames) -> bool:
        """True if this kernel takes operands of these dtypes, given by name; None is an absent operand."""
        return kernel in self._rows and _core.has_kernel(kernel, self.family, inputs, outputs)

    def __contains__(self, kernel: str) -> bool:
        return kernel in self._rows

    def _row(self, kernel: str) -> "_core.KernelRow":
        if kernel not in self._rows:
            raise Error(f"[kernel] got {kernel!r} for the family {self.family!r}, need a kernel of this family")
        return self._rows[kernel]


@lru_cache(maxsize=8)
def kernels(family: str) -> Kernels:
    """The kernels for this family of arithmetic ("ieee")."""
    return Kernels(family)
