"""ONNX's own backend tests, as the onnx package ships them: the cases, and what Hexane does with one."""

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.backend.test.loader import load_model_tests

import hexane

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")  # those of kind "real" are downloads
PLAIN = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT8, TensorProto.UINT8, TensorProto.INT32,
         TensorProto.INT64, TensorProto.BOOL}  # fmt: skip
RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
HALF_ULPS = 2  # expected fp16 and bf16 values were rounded after each step; the cases' 1e-3 can be a single ulp
PASSING = Path(__file__).parent / "passing.txt"


@dataclass(frozen=True, slots=True)
class Case:
    """`op` is the one the case is about, also where its nodes are that op's expansion."""

    name: str
    kind: str
    op: str
    model: onnx.ModelProto
    data: tuple[tuple[list[Any], list[Any]], ...]  # (inputs, outputs)
    rtol: float
    atol: float

    def __str__(self) -> str:
        return f"{self.op} {self.kind}/{self.name}"

    @property
    def random(self) -> bool:
        """Whether its values are drawn: what is expected then is one draw of another generator."""
        return self.drops or any(node.op_type in RANDOM for node in self.model.graph.node)

    @property
    def drops(self) -> bool:
        """Whether it is Dropout in training mode."""
        return self.name.startswith("test_training_dropout") and "zero_ratio" not in self.name

    @property
    def plain(self) -> bool:
        """A node case of common dtypes only, without subgraphs or other domains."""
        graph = self.model.graph
        return (
            self.kind == "node"
            and all(v.type.WhichOneof("value") == "tensor_type" for v in (*graph.input, *graph.output))
            and {v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)} <= PLAIN
            and all(n.domain in ("", "ai.onnx") for n in graph.node)
            and not any(a.type in (a.GRAPH, a.GRAPHS) for n in graph.node for a in n.attribute)
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """pass, unsupported (an Error says so before anything has run), wrong, or crash."""

    verdict: str
    reason: str = ""


def load_cases() -> list[Case]:
    """All cases that need no download, sorted as they print."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = [(kind, case) for kind in KINDS for case in load_model_tests(kind=kind)]
    models = {case.name: case.model or onnx.load(Path(case.model_dir) / "model.onnx") for _, case in found}
    cases = []
    for kind, case in found:
        model = models[case.name]
        whole = models.get(re.sub(r"_expanded(_ver\d+)?$", "", case.name), model)
        op = whole.graph.node[0].op_type if kind == "node" else kind
        sets = case.data_sets or [
            _read(folder, model) for folder in sorted(Path(case.model_dir).glob("test_data_set_*"))
        ]
        data = tuple((list(map(_array, inputs)), list(map(_array, outputs))) for inputs, outputs in sets)
        cases.append(Case(case.name, kind, op, model, data, case.rtol, case.atol))
    return sorted(cases, key=str)


def _read(folder: Path, model: onnx.ModelProto) -> tuple[list[Any], list[Any]]:
    def arrays(pattern: str, values: Any) -> Iterator[Any]:
        for i, value in enumerate(values):
            path = folder / f"{pattern}_{i}.pb"
            if path.exists() and value.type.WhichOneof("value") == "tensor_type":
                yield numpy_helper.to_array(onnx.load_tensor(path))
            elif path.exists():
                yield []  # sequences and the like

    return list(arrays("input", model.graph.input)), list(arrays("output", model.graph.output))


def _array(x: Any) -> Any:
    return numpy_helper.to_array(x) if isinstance(x, TensorProto) else x


def judge(case: Case) -> Outcome:
    """Compiles the case, runs it on its inputs, and compares with the outputs it expects."""
    compiled = False
    try:
        model = hexane.compile(case.model, threads=1)
        # One that is open compiles itself when it is called.
        compiled = isinstance(model, hexane.Model)
        for inputs, expected in case.data:
            found = model(*inputs)
            found = list(found.values()) if isinstance(found, dict) else [found]
            for got, want in zip(found, expected, strict=True):
                if difference := _difference(got, want, case):
                    return Outcome("wrong", difference)
    except hexane.Error as error:
        return Outcome("wrong" if compiled else "unsupported", str(error))
    except Exception as error:
        return Outcome("crash", f"{type(error).__name__}: {error}")
    return Outcome("pass")


def _difference(got: Any, want: Any, case: Case) -> str:
    want = np.asarray(want)
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return f"got {got.dtype}{list(got.shape)}, need {want.dtype}{list(want.shape)}"
    if case.drops:
        kept = (got != 0) & (want != 0)
        return "" if np.allclose(got[kept], want[kept]) else f"got {got.ravel()[:8]}, need zeros or {want.ravel()[:8]}"
    if case.random:
        return "" if np.isin(got, (0, 1)).all() else f"got {got.ravel()[:8]}, need zeros and ones"
    if want.dtype.kind in "iub":
        same = np.array_equal(got, want)
    else:
        wide = [x.astype(np.float64) for x in (got, want)]
        # A sum that cancels is off by a rounding of its largest terms, here and in what is expected.
        atol: Any = max(case.atol, 2**-24 * np.abs(wide[1][np.isfinite(wide[1])]).max(initial=0))
        if want.dtype.itemsize == 2:
            info = ml_dtypes.finfo(want.dtype)
            magnitude = np.maximum(np.abs(np.where(np.isfinite(wide[1]), wide[1], 0)), float(info.smallest_normal))
            atol = np.maximum(atol, HALF_ULPS * float(info.eps) * 2.0 ** np.floor(np.log2(magnitude)))
        with np.errstate(invalid="ignore"):
            near = np.abs(wide[0] - wide[1]) <= atol + case.rtol * np.abs(wide[1])
        finite = np.isfinite(wide[1])
        same = bool(np.where(finite, near, (wide[0] == wide[1]) | np.isnan(wide).all(0)).all())
    return "" if same else f"got {got.ravel()[:8]}, need {want.ravel()[:8]}"
