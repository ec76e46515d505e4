"""The recorded cases of LiteRT's kernels: `--tflite DIR` names the folder of op_cases.tar.xz and of networks/."""

import json
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.errors import UnsupportedError
from hexane.importers.signature import SpecialisationNeeded
from hexane.importers.tflite.opened import TFLiteModel, open_model

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::hexane.HazardWarning")]
Arrays = dict[str, np.ndarray]
LEAST_READ = 0.98
# The reference kernel leaves the channel c + radius out, which TensorFlow and LiteRT's default kernel do not.
BY_DEFAULT = ("LOCAL_RESPONSE_NORMALIZATION",)
# Of infinite numbers the reference gives NaN and infinity, where the op's limits are 0 and x.
NOT_COMPARED = ("hard_swish.f32special.000",)


def arrays(data: Any, step: int, kind: str) -> Arrays:
    start = f"{step}/{kind}/"
    return {name.removeprefix(start): data[name] for name in data.files if name.startswith(start)}


def compiled(model: TFLiteModel, function: str, inputs: Arrays) -> tuple[hx.Model, set[str]]:
    """The program for these inputs, and those whose values it holds."""
    values: Arrays = {}
    for _ in range(4):
        shapes = {name: array.shape for name, array in inputs.items() if name not in values}
        try:
            net = hx.compile(model.graph(function, shapes, values), threads=1)
        except SpecialisationNeeded as needed:
            values |= {name: inputs[name] for name in needed.names}
            continue
        assert isinstance(net, hx.Model)
        return net, set(values)
    raise AssertionError("values that decide shapes are asked for again and again")


def difference(case: dict[str, Any], folder: Path) -> str:
    """What is not as it should be; "" for nothing."""
    model, data = open_model((folder / f"{case['name']}.tflite").read_bytes()), np.load(folder / f"{case['name']}.npz")
    keys, found = case.get("signatures"), {}
    for step in range(case["steps"]):
        function = keys[step] if keys else next(iter(model.signatures))
        signature = model.of(function)
        inputs = arrays(data, step, "in")
        if not keys:
            inputs = {name: inputs[f"in{i}"] for i, name in enumerate(signature.inputs)}
        shapes = (function, *((name, array.shape) for name, array in inputs.items()))
        net, fixed = found[shapes] if shapes in found else compiled(model, function, inputs)
        if not fixed:
            found[shapes] = net, fixed
        kind = "default" if case.get("op") in BY_DEFAULT else case["expected"]
        wanted = arrays(data, step, "ref") | arrays(data, step, kind)
        feed = {name: array for name, array in inputs.items() if name not in fixed}
        got = net(feed) if feed else net()
        named = got if isinstance(got, dict) else {net.outputs[0].name: got}
        for i, name in enumerate(signature.outputs):
            want = wanted.get(name if keys else f"out{i}")
            if want is not None and (message := unequal(np.asarray(named[name]), want)):
                return f"{name}: {message}"
    return ""


def unequal(got: np.ndarray, want: np.ndarray) -> str:
    """Integers in every bit, floats within 1e-5 of the largest."""
    if got.shape != want.shape:
        return f"shape {got.shape} for {want.shape}"
    if want.dtype.kind in "biu":
        return "" if np.array_equal(got.astype(np.int64), want.astype(np.int64)) else f"{got} for {want}"
    finite = np.isfinite(want)
    largest = np.abs(want[finite]).max(initial=0)
    same = np.array_equal(got[~finite], want[~finite], equal_nan=True)
    error = np.abs(got[finite].astype(np.float64) - want[finite]).max(initial=0)
    return "" if same and error <= 1e-5 * largest else f"off by {error:.3g} of {largest:.3g}"


def test_the_recorded_cases(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """None is wrong; what is not read says so."""
    archive = request.config.getoption("--tflite") / "op_cases.tar.xz"
    if not archive.exists():
        pytest.skip(f"no op_cases.tar.xz in {archive.parent}; --tflite DIR says where it is")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    wrong, unread = [], Counter[str]()
    lines = (tmp_path / "op_cases" / "index.jsonl").read_text().splitlines()
    for line in lines:
        case = json.loads(line)
        try:
            if case["name"] not in NOT_COMPARED and (message := difference(case, tmp_path / "op_cases")):
                wrong.append(f"{case['name']}: {message}")
        except UnsupportedError:
            unread[case["op"]] += 1
    assert not wrong, "\n".join(wrong)
    assert unread.total() <= (1 - LEAST_READ) * len(lines), unread


def test_the_recorded_networks(request: pytest.FixtureRequest) -> None:
    folder = request.config.getoption("--tflite") / "networks"
    if not folder.exists():
        pytest.skip(f"no networks in {folder.parent}; --tflite DIR says where they are")
    for line in (folder / "index.jsonl").read_text().splitlines():
        case = json.loads(line)
        assert difference(case, folder) == "", case["name"]
