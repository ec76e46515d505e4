"""Every single number that others saw on silicon is in a test, or docs/numerics/published.md says why not: the list walked row by
row."""

import csv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = ROOT.parent / "shared" / "facts" / "data" / "numeric_cases.csv"
NUMERICS = (ROOT / "docs" / "numerics" / "published.md").read_text(encoding="utf-8")

# The first words of the rows of that file, by the test that has them. All of the accumulator's rows are PRODUCTS.
TESTED = {
    "MAC fp16": ("test_numeric_cases.py", "PRODUCTS"),
    "PE elementwise": ("test_numeric_cases.py", "BINARY"),
}
ONE_BY_ONE = {
    "x+0 with NaN": ("test_numeric_cases.py", '("add", NAN, 0, INF)'),
    "relu(NaN)": ("test_numeric_cases.py", '("relu", NAN, INF)'),
    "sigmoid(NaN), tanh(NaN), erf(NaN)": ("test_numeric_cases.py", '("erf", NAN, 1)'),
    "exp(NaN)": ("test_numeric_cases.py", '("exp", NAN, INF)'),
    "inf-inf, 0*inf, sqrt(-1), rsqrt(-1), log(-1)": ("test_numeric_cases.py", '("rsqrt", -1, 0)'),
    "1/-0": ("test_numeric_cases.py", '("real_div", 1, -0.0, INF)'),
    "rsqrt(-0)": ("test_numeric_cases.py", '("rsqrt", -0.0, INF)'),
    "sqrt(-0)": ("test_numeric_cases.py", '("sqrt", -0.0, 0)'),
    "-0 + 0": ("test_numeric_cases.py", '("add", -0.0, 0, 0)'),
    "softplus(inf), softsign(inf)": ("test_numeric_cases.py", '("softsign", INF, 0)'),
    "log(+0)": ("test_numeric_cases.py", '("log", 0, -45440)'),
    "exp overflow input": ("test_numeric_cases.py", '("exp", 11.09375, INF)'),
    "softmax[1000,1,2,3]": ("test_engine_lines.py", "[[1000, 1, 2, 3]]"),
    "width slice begin!=0: 4094": ("test_engine_steps.py", "4094"),
    "width slice begin!=0: 4095, 4096, 4100": ("test_engine_steps.py", "4096"),
    "width slice begin==0: 60000": ("test_engine_steps.py", "60000"),
    "height/channel/batch offset slice": ("test_engine_steps.py", "np.s_[1:], np.s_[:, 2:]"),
    "width-slice cliff": ("test_engine_steps.py", "4094"),
    "[4096]+[1]*1024 reduce probe": ("test_engine_lines.py", "5116"),
    "16x[+B,-B,+1]: B<=4090 / B>=4096": ("test_engine_lines.py", "4090"),
    "16000 ones": ("test_engine_lines.py", "16000"),
    "reduce_sum of 8 terms target 2049": ("test_engine_lines.py", "total(2048, 1, *[0] * 6) == 2050"),
    "S=2^28 scale 2^-14": ("test_multiply_bytes.py", "(1 << 14, 127, 127, 2.0**-14, 16128.0)"),
    "S=2^30 (-128*-128*65536) scale 2^-16": ("test_multiply_bytes.py", "(1 << 16, -128, -128, 2.0**-16, 16384.0)"),
    "S=2^31": ("test_multiply_bytes.py", "(1 << 17, -128, -128, 2.0**-16, np.inf)"),
    "output 64516": ("test_multiply_bytes.py", "(4, 127, 127, 1.0, 64512.0)"),
    "matmul inf cliff (K=4..128)": ("test_numeric_cases.py", "[4, 16, 128]"),
}
# And the words of docs/numerics/published.md that say why another one is not there.
EXPLAINED = {
    "gelu(0) table value (decoded)": "gelu(0) = -0.000543",
    "swish(0) (decoded)": "swish(0) = -0.001259",
    "1x1 conv Cin=1 fill 60000": "a 1x1 convolution of one channel that passes 60000",
}


def rows() -> list[dict[str, str]]:
    if not CASES.exists():
        pytest.skip("the published numbers are not beside the project")
    with CASES.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_published_number_is_tested_or_explained() -> None:
    found = rows()
    assert len(found) == 88
    for row in found:
        path, case = row["path"], row["case"]
        if path in TESTED or case in ONE_BY_ONE:
            name, words = TESTED.get(path) or ONE_BY_ONE[case]
            assert words in (Path(__file__).parent / name).read_text(encoding="utf-8"), case
        else:
            assert EXPLAINED[case] in NUMERICS, case
    named = {row["case"] for row in found}
    assert set(ONE_BY_ONE) | set(EXPLAINED) <= named


def test_there_are_as_many_products_and_sums_as_published() -> None:
    import test_numeric_cases as tested

    counts = {path: sum(row["path"] == path for row in rows()) for path in TESTED}
    assert len(tested.PRODUCTS) == counts["MAC fp16"]
    assert len(tested.BINARY) >= counts["PE elementwise"]
