"""The op tests of Apple's own converter: assets with inputs, states and the results of Apple's runtime.

`--coreai DIR` names the folder of op_cases.tar.xz: one folder a case with main.AICode.bc and test_data.npz.
"""

import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from hexane.importers.coreai import Asset, import_asset, open_asset, read_asset
from hexane.importers.coreai.attributes import Tensor

ATOL, RTOL = 1e-2, 1e-5  # of the suite that the cases come from
pytestmark = pytest.mark.slow
Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def cases(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    archive = request.config.getoption("--coreai") / "op_cases.tar.xz"
    if not archive.exists():
        pytest.skip(f"no op_cases.tar.xz in {archive.parent}; --coreai DIR says where it is")
    folder = tmp_path_factory.mktemp("coreai")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder


def pairs(array: np.ndarray) -> np.ndarray:
    """Complex numbers as ports have them: one more axis, of real and imaginary parts."""
    return np.stack([array.real, array.imag], -1) if array.dtype.kind == "c" else array


def differences(asset: Asset, data: Arrays) -> list[str]:
    """The outputs and states that are not as they should be."""
    function = asset.function()
    shapes = {
        p.name: data[p.name].shape for p in function.inputs if isinstance(p.type, Tensor) and None in p.type.shape
    }
    net = hx.compile(import_asset(asset, shapes=shapes), threads=1)
    assert isinstance(net, hx.Model)
    for state in function.states:
        if (first := data.get(f"initial_state_{state.name}")) is not None:
            net.write_state(state.name, first.reshape(net.read_state(state.name).shape))
    found = net({p.name: pairs(data[p.name]) for p in function.inputs})
    outputs = found if isinstance(found, dict) else {function.outputs[0].name: found}
    wanted = {p.name: pairs(data[p.name]) for p in function.outputs}
    for state in function.states:
        if (last := data.get(f"final_state_{state.name}")) is not None:
            wanted[state.name] = last
            outputs[state.name] = net.read_state(state.name).reshape(last.shape)
    return [name for name, want in wanted.items() if not _equal(outputs[name], want)]


def _equal(got: np.ndarray, want: np.ndarray) -> bool:
    want = want.view(got.dtype) if want.dtype.kind == "V" else want
    wide = [a.astype(np.float64) for a in (got, want)]
    return got.shape == want.shape and np.allclose(*wide, atol=ATOL, rtol=RTOL, equal_nan=True)


def test_apples_op_cases_give_apples_results(cases: Path) -> None:
    """No wrong number, and 98 of 100 run. What does not run says why in one line of a kind."""
    refused, wrong, total = Counter[str](), [], 0
    for data in sorted(cases.rglob("test_data.npz")):
        total += 1
        name = str(data.parent.relative_to(cases))
        try:
            asset = read_asset((data.parent / "main.AICode.bc").read_bytes(), name)
            with np.load(data) as arrays:
                if differing := differences(asset, dict(arrays)):
                    wrong.append(f"{name}: {', '.join(differing)}")
        except hx.Error as error:
            refused[str(error).splitlines()[-1].strip()[:120]] += 1
    print("\n".join(f"{count} {why}" for why, count in refused.most_common()))
    assert wrong == []
    assert total > 800
    assert sum(refused.values()) <= 0.02 * total


def test_an_asset_that_todays_loaders_abort_on_runs(cases: Path) -> None:
    asset = open_asset(cases / "old_b1.aimodel")
    assert asset.is_of_the_first_converters
    with np.load(cases / "old_b1.npz") as data:
        got = hx.compile(cases / "old_b1.aimodel")(data["x"])
        np.testing.assert_allclose(got, data["y"], atol=1e-6)
