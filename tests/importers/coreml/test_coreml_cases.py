"""The op tests of Apple's converter: ML programs with inputs and the results that the tests expect.

`--coreml DIR` names the folder of op_cases.tar.xz, one folder a case with model.mlmodel, weight.bin and data.npz, and of
packages/, whole models.
"""

import json
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.errors import UnsupportedError
from hexane.importers.coreml.model import CoreMLModel
from hexane.importers.coreml.package import Package
from hexane.importers.coreml.schema import messages
from hexane.importers.signature import SpecialisationNeeded

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::hexane.HazardWarning")]
Arrays = dict[str, np.ndarray]
LEAST_READ = 0.98


class Case(Package):
    """A model whose weights lie beside it."""

    def weights(self, name: str) -> bytes:
        return (self.path / "weight.bin").read_bytes()


@pytest.fixture(scope="module")
def cases(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    archive = request.config.getoption("--coreml") / "op_cases.tar.xz"
    if not archive.exists():
        pytest.skip(f"no op_cases.tar.xz in {archive.parent}; --coreml DIR says where it is")
    folder = tmp_path_factory.mktemp("coreml")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / "op_cases"


def step_arrays(data: Any, step: str, kind: str) -> Arrays:
    return {k.split(f"/{kind}/")[1]: data[k] for k in data.files if k.startswith(f"{step}/{kind}/")}


def compiled(model: CoreMLModel, function: str, inputs: Arrays) -> tuple[hx.Model, Arrays]:
    """The program for these inputs, and those that it still takes."""
    values: Arrays = {}
    for _ in range(4):
        try:
            shapes = {name: array.shape for name, array in inputs.items() if name not in values}
            net = hx.compile(model.graph(function, shapes, values), threads=1)
        except SpecialisationNeeded as needed:
            values |= {name: inputs[name] for name in needed.names}
            continue
        assert isinstance(net, hx.Model)
        return net, {name: array for name, array in inputs.items() if name not in values}
    raise AssertionError("values that decide shapes are asked for again and again")


def difference(case: dict[str, Any], folder: Path) -> str:
    """What is not as it should be; "" for nothing."""
    spec = messages()["Model"].FromString((folder / "model.mlmodel").read_bytes())
    model, data = CoreMLModel(Case(folder, spec, folder)), np.load(folder / "data.npz")
    net: hx.Model | None = None
    for step in range(case["steps"]):
        inputs, wanted = (step_arrays(data, str(step), kind) for kind in ("in", "out"))
        if net is None or not case.get("states"):
            net, inputs = compiled(model, case["function"], inputs)
            for name in data.files:
                if name.startswith("state0/"):
                    net.write_state(name.removeprefix("state0/"), data[name])
        found = net(inputs) if inputs else net()
        got = found if isinstance(found, dict) else {net.outputs[0].name: found}
        for name, want in wanted.items():
            if message := unequal(np.asarray(got[name]), want, case["tolerance"]):
                return f"{name}: {message}"
    return ""


def unequal(got: np.ndarray, want: np.ndarray, tolerance: float) -> str:
    if got.shape != want.shape:
        return f"shape {got.shape} for {want.shape}"
    if got.dtype.kind in "biu" and want.dtype.kind in "biu":
        return "" if np.array_equal(got.astype(np.int64), want.astype(np.int64)) else f"{got} for {want}"
    a, b = got.astype(np.float64), want.astype(np.float64)
    near = np.allclose(a, b, atol=max(tolerance, 2e-5), rtol=max(tolerance, 1e-5), equal_nan=True)
    return "" if near else f"off by {np.nanmax(np.abs(a - b)):.3g} of {np.nanmax(np.abs(b)):.3g}"


def test_the_cases_of_apples_converter(cases: Path) -> None:
    """None is wrong; what is not read says so."""
    wrong, unread = [], Counter[str]()
    lines = (cases / "index.jsonl").read_text().splitlines()
    for line in lines:
        case = json.loads(line)
        try:
            if message := difference(case, cases / case["name"]):
                wrong.append(f"{case['name']}: {message}")
        except (UnsupportedError, hx.InputError):
            unread[case["op"]] += 1
    assert not wrong, "\n".join(wrong)
    assert unread.total() <= (1 - LEAST_READ) * len(lines), unread


def package_names(config: pytest.Config) -> list[str]:
    index = config.getoption("--coreml") / "packages" / "index.json"
    return list(json.loads(index.read_text())) if index.exists() else []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "package" in metafunc.fixturenames:
        metafunc.parametrize("package", package_names(metafunc.config))


def test_a_whole_package(package: str, request: pytest.FixtureRequest) -> None:
    folder = request.config.getoption("--coreml") / "packages"
    about = json.loads((folder / "index.json").read_text())[package]
    data = np.load(folder / package / f"{package}.npz")
    for function in about["functions"]:
        net = hx.compile(f"{folder / package / package}.mlpackage#{function}")
        before = f"{function}/" if len(about["functions"]) > 1 else ""
        steps = {k.removeprefix(before).split("/")[0] for k in data.files if k.startswith(before)}
        for step in sorted(s for s in steps if s.isdigit()):
            found = net(step_arrays(data, before + step, "in"))
            got = found if isinstance(found, dict) else {net.outputs[0].name: found}  # type: ignore[index]
            for name, want in step_arrays(data, before + step, "out").items():
                array = got["classLabel_probs"].reshape(want.shape) if name == "probabilities" else got[name]
                assert np.abs(array - want).max() <= about["tolerance"] * np.abs(want).max(), (function, step, name)
            for name, want in step_arrays(data, before + step, "state").items():
                state = net.read_state(name)
                assert np.abs(state - want).max() <= about["tolerance"] * np.abs(want).max(), (function, step, name)
