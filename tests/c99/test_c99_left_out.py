"""What an app is built without, since its plan has not got it: it refuses a plan that has."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from test_c99_kernels import one_step

from hexane.emit.c99 import generate
from hexane.emit.plan_view import _DTYPES, runtime_files


def test_dtypes_have_the_runtime_s_numbers() -> None:
    text = runtime_files()["src/internal.h"].read_text()
    found = re.search(r"typedef enum hx_dtype \{(.*?)HX_DTYPES", text, re.DOTALL)
    assert found is not None
    assert tuple(name.lower() for name in re.findall(r"HX_(\w+)", found[1])) == _DTYPES


def plan_of(other: str) -> bytes:
    """Of int8, with something else in its place or beside it."""
    if other == "sigmoid":
        plan, _ = one_step("sigmoid", [np.zeros(4, np.float32)], ((4,), "fp32"))
        return bytes(plan.tobytes())
    dtype = "uint8" if other == "uint8" else "int8"
    plan, _ = one_step(
        "dequantize", [np.zeros(4, dtype), np.array(0.5, np.float32)], ((4,), "fp32"), weights=[1], axis=0
    )
    plan.space("state" if other == "state" else "arena", 8)
    return bytes(plan.tobytes())


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files of an app that runs."""
    files = generate(plan_of("int8"), "net", app=True)
    assert outcome(tmp_path_factory.mktemp("own"), files, 4).returncode == 0
    return files


@pytest.mark.skipif(shutil.which("make") is None, reason="not there: make")
@pytest.mark.parametrize(
    ("other", "words"), [("uint8", "this build has"), ("state", "this build has"), ("sigmoid", "sigmoid")]
)
def test_an_app_refuses_a_plan_that_has_what_it_was_built_without(
    tmp_path: Path, own: dict[str, str], other: str, words: str
) -> None:
    foreign = generate(plan_of(other), "net", app=True)
    ran = outcome(tmp_path / "foreign", {**own, "net_plan.c": foreign["net_plan.c"], "net.h": foreign["net.h"]}, 16)
    assert ran.returncode != 0
    assert words in ran.stdout + ran.stderr


def outcome(folder: Path, files: dict[str, str], input_bytes: int) -> "subprocess.CompletedProcess[str]":
    """Of the app of these files."""
    for place, text in files.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text)
    (folder / "input.bin").write_bytes(bytes(input_bytes))
    subprocess.run(["make", "-s", "-C", folder, "CFLAGS=-O0"], check=True)
    return subprocess.run([folder / "net"], cwd=folder, capture_output=True, text=True)
