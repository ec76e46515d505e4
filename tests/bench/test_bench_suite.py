"""The suite: processes, documents, tables, pictures, and the command."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hexane.bench import Configuration, compare, read, run, worker
from hexane.bench.document import TIMES
from hexane.bench.noise import SAME, busy, impossible
from hexane.bench.plot import per_mib
from hexane.bench.statistics import FEWEST, Times, measure, measure_together
from hexane.bench.suite import _cliffs, repeated
from hexane.bench.table import figure, findings, markdown, peaks, rows, thread_findings, warning
from hexane.cli.main import app
from hexane.errors import Error
from hexane.runtime.engine import own_chip

CHAIN = {"channels": 16, "depth": 2, "height": 1, "width": 4}
SMALL = (
    Configuration("peak", "conv 16x2", "conv_chain", CHAIN, "fp32"),
    Configuration("int8", "conv 16x2", "conv_chain", CHAIN, "fp32"),
    Configuration("int8", "int8 16x2", "int8_chain", CHAIN, "fp32"),
    Configuration("threads", "relu, 2 at once", "relu", {"elements": 64}, "fp32", "threads", 2),
    Configuration("peak", "no such network", "pool", {}, "fp32"),
)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return run(SMALL, "cpu", seconds=0.01, threads=1)


def test_quantiles_are_those_of_the_samples() -> None:
    times = Times.of([1000 * i for i in range(1, 102)])
    assert (times.min, times.p10, times.p50, times.p90, times.p99) == (1, 11, 51, 91, 100)
    assert times.samples == 101
    assert Times.of([64_000], 64).p50 == 1


def test_short_calls_are_timed_together_and_long_ones_five_times() -> None:
    calls = []
    assert measure(lambda: calls.append(1), 0.01).calls_per_sample > 1
    import time

    slow = measure(lambda: time.sleep(0.01), 0.001)
    assert (slow.samples, slow.calls_per_sample) == (FEWEST, 1)


def test_a_slow_first_call_does_not_make_samples_short() -> None:
    """Short samples count the clock's own time as the call's."""
    import time

    first = [lambda: time.sleep(0.001)]
    found = measure(lambda: first.pop()() if first else None, 0.01)
    assert found.p50 * found.calls_per_sample > 5
    assert found.calls_per_sample > 16


def test_what_runs_before_a_call_is_not_timed() -> None:
    import time

    assert measure(lambda: None, 0.01, before=lambda: time.sleep(0.005)).p50 < 2000


def test_each_of_several_threads_times_its_own_calls() -> None:
    """Four threads that wait 10 ms a call make 400 calls a second; a call takes 10 ms and not a quarter of it."""
    import time

    calls = [lambda seconds=seconds: time.sleep(seconds) for seconds in (0.01, 0.01, 0.01, 0.02)]
    found = measure_together(calls, 0.1)
    times, per_second = found.times, found.calls_per_second
    assert 11_000 < found.mean_us < 100_000
    assert times.min >= 10_000
    assert 20_000 <= times.p99 < 100_000
    assert times.calls_per_sample == 1
    assert 60 < per_second <= 350
    assert times.samples >= 3 * FEWEST


def test_no_thread_ends_before_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit on the number of samples would leave a slow thread alone."""
    monkeypatch.setattr("hexane.bench.statistics.MOST", 5)
    import time

    assert measure_together([lambda: time.sleep(0.001)] * 2, 0.05).times.samples > 20


def test_what_several_threads_gain_is_told() -> None:
    def made(threads: int, mean: float, rate: float) -> dict[str, Any]:
        return {"probe": "threads", "name": f"n, {threads} at once", "network": "relu", "mode": "threads", "threads": threads,
                "mean_us": mean, "calls_per_second": rate, "sizes": {}, "side": ""}  # fmt: skip

    document = {"results": [made(1, 10, 1e5), made(4, 20, 2e5)], "cliffs": []}
    assert list(findings(document)) == [
        "threads: n, 4 at once: 2 times as many calls per second as alone; a call takes 2 times as long (mean)"
    ]


def test_an_error_in_one_of_several_threads_is_raised() -> None:
    def fail() -> None:
        raise Error("broken")

    with pytest.raises(Error, match="broken"):
        measure_together([lambda: None, fail], 0.01)


def test_a_configuration_that_fails_does_not_end_the_others(document: dict[str, Any]) -> None:
    errors = [r.get("error", "") for r in document["results"]]
    assert errors[:4] == [""] * 4
    assert "KeyError: 'pool'" in errors[4]


def test_a_result_says_how_many_threads_were_asked_for(document: dict[str, Any]) -> None:
    assert [r["threads"] for r in document["results"]] == [1, 1, 1, 2, 1]
    assert [r.get("threads_of_cpu") for r in document["results"]] == [1, 1, 1, 1, None]


def test_a_document_is_read_as_it_was_written(document: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(document, allow_nan=False))
    assert read(path) == document
    assert document["environment"]["cores"] >= 1


def test_tables_have_a_row_for_each(document: dict[str, Any]) -> None:
    made = list(rows(document))
    assert [r[-1] for r in made[:3]] == ["right"] * 3
    text = markdown(document)
    assert "measured on the CPU, not a Neural Engine" in text
    assert text.count("| conv 16x2") == 2
    assert any(line.startswith("peak, conv 1x1: at most") for line in findings(document))
    assert any("times as fast as fp32" in line for line in findings(document))
    assert "int8: int8 16x2 differs from NumPy's int32 sums by 0 (relative L2), at most 0 in one number" in findings(
        document
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "got no JSON"),
        ("[]", "got JSON of another kind"),
        ('{"format": "hexane-bench", "version": 7}', "got version 7, need 2"),
        ('{"format": "hexane-bench", "version": 2}', "device: got NoneType, need str"),
        (
            (
                '{"format": "hexane-bench", "version": 2, "device": "cpu", "environment": {}, "cliffs": [], "results":'
                ' [{"name": "a"}]}'
            ),
            r"results\[0\]",
        ),
    ],
)
def test_a_file_that_is_no_document_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(Error, match=says):
        read(path)


def result(name: str, low: float, high: float, repeats: int = 5) -> dict[str, Any]:
    """A result whose repeats have medians from low to high, and whose samples within a repeat hardly differ."""
    p50 = (low + high) / 2
    medians = [{"p50_us": float(x)} for x in np.linspace(low, high, repeats)]
    times = dict.fromkeys(TIMES, p50) | {"p10": p50 * 0.99, "p90": p50 * 1.01}
    return {"probe": "p", "name": name, "times_us": times, "repeats": medians}


def whole(*results: dict[str, Any], cores: int = 2, **load: float) -> dict[str, Any]:
    """A document with these results, of a quiet machine unless `load` says otherwise."""
    return {
        "format": "hexane-bench", "version": 2, "device": "cpu",
        "environment": {"cores": cores, "energy": "no meter"}, "cliffs": [],
        "date": "2026-03-01T12:00:00+00:00", "repeats": 5, "seconds": 0.5,
        "load": {"before": 0.1, "highest": 1.5, "own": 2} | load, "results": list(results),
    }  # fmt: skip


def test_results_compare_as_slower_only_where_their_times_do_not_overlap() -> None:
    a = whole(result("a", 10, 12), result("b", 10, 12), result("c", 10, 12), result("only", 1, 2))
    failed = {"probe": "p", "name": "d", "error": "broken"}
    a["results"].append(failed)
    b = whole(result("a", 11, 30), result("b", 13, 14), result("c", 5, 9), failed, result("new", 1, 2))
    found = {r["name"]: r for r in compare(a, b)}
    assert {name: r["verdict"] for name, r in found.items()} == {
        "a": SAME,
        "b": "slower",
        "c": "faster",
        "d": "no result",
    }
    assert found["b"]["ratio"] == pytest.approx(13.5 / 11)
    assert (found["b"]["a_interval"], found["b"]["b_interval"]) == ((10, 12), (13, 14))


def test_one_machine_compared_with_itself_is_the_same_within_noise() -> None:
    """Each process has a level of its own (addresses, clock, neighbours), 10 % apart, with samples within 1 % of it:
    single runs look faster or slower although nothing differs."""
    random = np.random.default_rng(7)

    def measured() -> dict[str, Any]:
        made = []
        for i in range(40):
            records = [record(100 * float(np.exp(random.normal(0, 0.1)))) for _ in range(5)]
            made.append({"probe": "p", "name": f"n{i}"} | repeated(records))
        return whole(*made)

    a, b = measured(), measured()
    by_samples = [
        x["times_us"]["p90"] < y["times_us"]["p10"] or x["times_us"]["p10"] > y["times_us"]["p90"]
        for x, y in zip(a["results"], b["results"], strict=True)
    ]
    assert sum(by_samples) > 20
    told = [row["verdict"] for row in compare(a, b)]
    assert told.count(SAME) >= 39  # 1 of 126 differs by chance


def test_a_real_change_is_told_in_spite_of_noise() -> None:
    random = np.random.default_rng(8)

    def measured(us: float) -> dict[str, Any]:
        records = [record(us * float(np.exp(random.normal(0, 0.1)))) for _ in range(5)]
        return whole({"probe": "p", "name": "n"} | repeated(records))

    assert compare(measured(100), measured(50))[0]["verdict"] == "faster"
    assert compare(measured(50), measured(100))[0]["verdict"] == "slower"


def test_fewer_than_four_repeats_give_no_verdict() -> None:
    for few in (1, 3):
        (row,) = compare(whole(result("a", 10, 11, few)), whole(result("a", 1, 2)))
        assert (row["verdict"], row["a_interval"]) == ("too few repeats", None)
    earlier = result("a", 10, 11)
    del earlier["repeats"]
    assert compare(whole(earlier), whole(result("a", 1, 2)))[0]["verdict"] == "too few repeats"
    assert compare(whole(result("a", 10, 11, 4)), whole(result("a", 1, 2, 4)))[0]["verdict"] == "faster"


@pytest.mark.parametrize(
    ("load", "says"),
    [
        ({"before": 7.3}, "load 7.3 before the run, 2 cores"),
        ({"highest": 6.5}, "load 6.5 during the run, 2 of it the benchmark's own threads, 2 cores"),
        ({"highest": 8.0, "own": 8}, ""),
        ({"before": 2.0, "highest": 4.0}, ""),
        ({"before": None, "highest": None}, ""),
    ],
)
def test_a_machine_is_busy_where_others_load_it_above_its_cores(load: dict[str, Any], says: str) -> None:
    document = whole(**load)
    assert busy(document) == says
    assert bool(warning(document)) == bool(says)
    if says:
        assert warning(document).startswith(f"warning: the machine was busy ({says})")


def test_a_busy_machine_is_neither_faster_nor_slower() -> None:
    a, b = whole(result("a", 10, 12), result("b", 10, 12)), whole(result("a", 20, 22), result("b", 11, 13), before=7.3)
    for one, other in ((a, b), (b, a)):
        assert [row["verdict"] for row in compare(one, other)] == ["unsure: busy machine", SAME]


def test_a_comparison_tells_dates_loads_and_intervals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = tmp_path / "a.json", tmp_path / "b.json"
    for path, one in zip(paths, (whole(result("a", 10, 12)), whole(result("a", 20, 22), before=7.3)), strict=True):
        path.write_text(json.dumps(one))
    assert command("bench", "--compare", *paths) == 0
    told = capsys.readouterr().out
    flat = " ".join(told.split())
    assert "2026-03-01 12:00:00 UTC, 5 repeats, load 7.3 before the run and at most 1.5 during it" in flat
    assert flat.count("warning: the machine was busy (load 7.3 before the run, 2 cores)") == 1
    assert "10.00 to 12.00" in flat
    assert "unsure: busy machine" in flat


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"date": 5}, "date: got int, need str"),
        ({"load": {"before": "much"}}, "load.before: got str, need a number"),
        ({"environment": {"cores": "two"}}, "environment.cores: got str, need a number"),
        ({"results": [result("a", 1, 2) | {"repeats": [{}]}]}, r"results\[0\].repeats: got no list"),
        ({"results": [result("a", 1, 2) | {"repeats": [{"p50_us": 0}]}]}, r"results\[0\].repeats: got no list"),
        ({"results": [result("a", 1, 2) | {"repeats": [{"p50_us": float("inf")}]}]}, r"repeats\[0\].p50_us: got inf"),
        ({"results": [result("a", float("nan"), 2)]}, r"results\[0\].times_us.min: got nan, need a finite number"),
        ({"results": [result("a", 0, 0)]}, r"results\[0\]: got no name, or neither positive times"),
        ({"load": {"before": float("-inf")}}, "load.before: got -inf"),
    ],
)
def test_repeats_dates_and_loads_of_another_form_are_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(whole() | change))
    with pytest.raises(Error, match=says):
        read(path)


def record(p50: float, **more: Any) -> dict[str, Any]:
    """What a worker says of one repeat."""
    times = dict.fromkeys(TIMES, p50) | {"p10": p50 * 0.99, "p90": p50 * 1.01}
    return {"times_us": times, "distance": 0.0, "largest_error": 0.0, "compile_ms": 1.0, "first_us": 9.0} | more


def test_repeats_are_rounds_and_the_one_in_the_middle_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause of the machine then hits one repeat of each configuration, not all repeats of one."""
    asked: list[str] = []

    def measured(c: Configuration, *_: object) -> dict[str, Any]:
        asked.append(c.name)
        return {"error": "broken"} if c.network == "pool" else record([30.0, 10.0, 20.0][len(asked) // 4])

    loads = iter([0.5, 3.0, 9.0])
    monkeypatch.setattr("hexane.bench.suite._measured", measured)
    monkeypatch.setattr("hexane.bench.suite.load", lambda: next(loads, 1.0))
    told: list[str] = []
    chosen = [SMALL[0], SMALL[1], SMALL[3], SMALL[4]]
    found = run(chosen, "cpu", 0.01, 1, lambda c, _: told.append(c.name), repeats=3)
    names = [c.name for c in chosen]
    assert asked == [*names, *names[:3], *names[:3]]  # an error is not repeated
    assert told == names * 3
    first = found["results"][0]
    assert [r["p50_us"] for r in first["repeats"]] == [30, 10, 20]
    assert first["times_us"]["p50"] == 20
    assert found["results"][3]["error"] == "broken"
    assert found["load"] == {"before": 0.5, "highest": 9.0, "own": 2}
    assert (found["repeats"], found["date"][-6:]) == (3, "+00:00")


def test_repeats_keep_their_largest_error_and_an_error_of_one_ends_them() -> None:
    found = repeated([record(1.0, distance=0.1), record(2.0), record(3.0, largest_error=4.0)])
    assert (found["distance"], found["largest_error"], found["times_us"]["p50"]) == (0.1, 4.0, 2.0)
    assert repeated([record(1.0), {"error": "broken"}]) == {"error": "broken"}


@pytest.mark.parametrize(
    ("device", "gain", "says"),
    [
        (
            "cpu",
            5.2,
            " (noise: 2 threads on 2 cores make at most 2 times as many calls; measure again on a quiet machine)",
        ),
        ("ane", 5.2, " (noise: 2 threads make at most 2 times as many calls; measure again on a quiet machine)"),
        ("cpu", 2.0, ""),
        ("cpu", 1.01, " (as many calls as alone: the same within noise)"),
    ],
)
def test_more_calls_than_the_cores_can_make_are_noise(device: str, gain: float, says: str) -> None:
    def made(threads: int, rate: float) -> dict[str, Any]:
        repeats = [{"p50_us": 1.0, "calls_per_second": rate * x} for x in (0.9, 0.95, 1, 1.05, 1.1)]
        return {"probe": "threads", "name": f"n, {threads} at once", "network": "relu", "mode": "threads",
                "threads": threads, "mean_us": 10.0, "calls_per_second": rate, "repeats": repeats, "sizes": {}}  # fmt: skip

    document = whole(made(1, 1e5), made(2, gain * 1e5)) | {"device": device}
    (told,) = thread_findings(document)
    assert told.endswith(f"as long (mean){says}")


def test_eight_threads_on_two_cores_are_held_to_two() -> None:
    assert impossible(whole(cores=2), 8, 2.5)
    assert not impossible(whole(cores=8), 8, 7.9)
    assert not impossible({"device": "cpu"}, 8, 7.9)


def test_chains_of_8_bits_that_gain_less_than_the_noise_say_so() -> None:
    """A ratio of two medians is a comparison, too."""
    shared = {"probe": "int8", "sizes": {}, "mode": "bound", "dtype": "fp32", "distance": 0.0, "largest_error": 0.0}
    for us, says in ((11.0, True), (30.0, False)):
        floats = result("conv", us, us + 2) | shared | {"network": "conv_chain", "gflops": 1.0, "operations": 0}
        eight = result("int8", 10, 12) | shared | {"network": "int8_chain", "gflops": 1.2, "operations": 0}
        told = "\n".join(findings(whole(floats, eight)))
        assert ("1.2 times as fast as fp32 (the same within noise)" in told) == says


def grown(side: str, floor: float, slope: float, cliff: float) -> list[dict[str, Any]]:
    """Results whose times are a floor and a slope, which is three times as steep above the cliff; in us and MiB."""
    made = []
    for i in range(20):
        mib = 2 ** (i / 2 - 4)
        us = (floor + slope * mib + 2 * slope * max(mib - cliff, 0)) * (1.002 if i % 2 else 0.998)
        times = {"min": us, "p10": us * 0.999, "p50": us, "p90": us * 1.01, "p99": us * 1.02, "variation": 0.1}
        made.append(
            {"probe": "sram", "side": side, "name": f"{side} {i}", "network": "n", "mode": "bound", "sizes": {},
             f"{side.removesuffix('s')}_bytes": mib * 2**20, "times_us": times, "gflops": 1.0, "operations": 1}
        )  # fmt: skip
    return made


def test_each_side_has_its_floor_and_its_cliff() -> None:
    results = grown("weights", 90, 10, 4) + grown("activations", 120, 30, 1)
    activations, weights = _cliffs(results)
    for found, floor, slope, cliff in ((weights, 90, 10, 4), (activations, 120, 30, 1)):
        assert found["floor"] == pytest.approx(floor, rel=0.02)
        assert found["floor_low"] <= found["floor"] <= found["floor_high"]
        (only,) = found["breaks"]
        assert only["low"] <= cliff * 2**20 <= only["high"]
        assert (only["slope_before"], only["slope_after"]) == pytest.approx((slope, 3 * slope), rel=0.05)
        assert found["above_floor"][0]["us"] == pytest.approx(slope / 16, abs=0.01 * floor)
    document = {"results": results, "cliffs": [activations, weights]}
    text = "\n".join(findings(document))
    assert "sram, weights: a cliff at 4 MiB (95 %: " in text
    assert "sram, activations: a cliff at 1 MiB (95 %: " in text
    assert "sram, weights: every call takes " in text


def test_a_floor_that_may_be_0_is_told_as_none() -> None:
    (cliff,) = _cliffs(grown("weights", 0, 10, 4))
    assert "sram, weights: no floor that can be told from 0 (95 %: at most " in "\n".join(
        findings({"results": [], "cliffs": [cliff]})
    )


def test_what_a_picture_shows_has_no_floor() -> None:
    """Time for each MiB is flat below the cliff; with the floor it would fall by a factor of eight."""
    results = grown("weights", 90, 10, 4)
    (cliff,) = _cliffs(results)
    shown = per_mib({"results": results}, cliff)
    flat = [p["p50"] for p in shown if 2**18 < p["bytes"] < 2**22]
    assert len(flat) > 5
    assert max(flat) / min(flat) < 1.3


def test_each_kind_has_its_peak() -> None:
    def made(network: str, sizes: dict[str, int], rate: float) -> dict[str, Any]:
        return {"probe": "peak", "name": f"{network} {rate}", "network": network, "sizes": sizes, "gflops": rate}

    results = [
        made("conv_chain", {}, 3),
        made("conv_chain", {}, 5),
        made("conv_chain", {"kernel": 3}, 4),
        made("gemm", {}, 2),
    ]
    assert {kind: r["gflops"] for (_, kind), r in peaks(results).items()} == {"conv 1x1": 5, "conv 3x3": 4, "matmul": 2}


def test_pictures_are_written(document: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    from hexane.bench.plot import plot

    more = [
        r | {"probe": "sram", "side": "weights", "weight_bytes": 1 << (12 + i)}
        for i, r in enumerate(document["results"][:3])
    ]
    cliff = {"probe": "sram", "side": "weights", "points": 3, "floor": None, "floor_high": None, "breaks": []}
    made = plot(document | {"results": document["results"] + more, "cliffs": [cliff]}, tmp_path / "pictures")
    assert sorted(p.name for p in made) == ["int8.png", "peak.png", "sram-weights.png", "threads.png"]
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in made)


def command(*args: object) -> int:
    with pytest.raises(SystemExit) as ended:
        app([str(a) for a in args], prog_name="hexane")
    return ended.value.code if isinstance(ended.value.code, int) else 0


def test_the_command_measures_and_compares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hexane.bench.configurations", lambda probe, device: list(SMALL[:3]))
    monkeypatch.setattr("hexane.bench.suite._measured", lambda c, *_: worker.run(c, "cpu", 0.01, 1))
    path, table = tmp_path / "a.json", tmp_path / "a.md"
    assert command("bench", "peak", "--seconds", 0.01, "--threads", 1, "--json", path, "--markdown", table) == 0
    told = capsys.readouterr().out
    assert "conv 16x2" in told
    assert re.search(r"^20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC, 5 repeats, load ", told, re.MULTILINE)
    assert " UTC, 5 repeats, load " in table.read_text()
    assert [len(r["repeats"]) for r in read(path)["results"]] == [5, 5, 5]
    assert "| conv 16x2" in table.read_text()
    assert command("bench", "--compare", path, path) == 0
    told = capsys.readouterr().out
    assert told.count(SAME) == 3
    assert "differs" not in told
    other = read(path)
    other["device"], other["environment"]["cpu"], other["environment"]["model"] = "ane", "Apple M4", "Mac16,1"
    del other["results"][2]
    second = tmp_path / "b.json"
    second.write_text(json.dumps(other))
    assert command("bench", "--compare", path, second) == 0
    told = capsys.readouterr().out
    assert re.search(r"^device +cpu +ane *$", told, re.MULTILINE)
    assert re.search(r"^cpu +.* +Apple M4 *$", told, re.MULTILINE)
    assert re.search(r"^model +not told +Mac16,1 *$", told, re.MULTILINE)
    assert not re.search(r"^numpy", told, re.MULTILINE)
    assert told.count(SAME) == 2
    assert "1 configuration of A alone is left out" in told


def test_the_command_ends_with_1_where_a_result_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hexane.bench.configurations", lambda probe, device: [SMALL[4]])
    assert command("bench", "peak", "--seconds", 0.01, "--repeats", 2) == 1
    assert "got 1 of 1 configuration without a right result" in capsys.readouterr().err


def test_files_that_cannot_be_written_are_told_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(*_: object) -> None:
        raise AssertionError("something was measured")

    monkeypatch.setattr("hexane.bench.run", measured)
    for option in ("--json", "--markdown", "--html"):
        assert command("bench", "peak", option, tmp_path / "none" / "a") == 1
        assert "none', need one that is there" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert command("bench", "peak", "--plot", tmp_path) == 1
    assert "pip install 'hexane[plot]'" in capsys.readouterr().err


@pytest.mark.skipif(bool(own_chip()), reason="this machine has a Neural Engine")
def test_a_neural_engine_that_is_not_there_is_one_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("bench", "dispatch", "--device", "ane") == 1
    told = capsys.readouterr()
    assert "device: got 'ane', need a Neural Engine" in told.err
    assert told.out == ""


def test_a_comparison_takes_two_files_of_results_and_no_probe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("bench") == 2
    assert "got neither PROBE nor --compare" in capsys.readouterr().err
    assert command("bench", "peak", "--compare", "a.json", "b.json") == 2
    assert "got both PROBE and --compare" in capsys.readouterr().err
    assert command("bench", "--compare", "a.json") == 2
    capsys.readouterr()
    assert command("bench", "--compare", "/nonexistent/a.json", "/nonexistent/b.json") == 1
    assert "No such file" in capsys.readouterr().err
    for text in ("\0\x7fELF", '{"format": "hexane-bench", "version": 2', '{"benchmarks": []}'):
        path = tmp_path / "foreign.json"
        path.write_text(text)
        assert command("bench", "--compare", path, path) == 1
        told = capsys.readouterr()
        assert f"[bench] {path}: got " in told.err
        assert "need a document of `hexane bench --json`" in told.err
        assert told.out == ""


def test_one_name_with_other_sizes_is_not_compared() -> None:
    one, other = result("a", 1, 2), result("a", 1, 2)
    assert len(compare(whole(one), whole(other))) == 1
    other["sizes"] = {"rows": 3}
    assert compare(whole(one), whole(other)) == []


def test_the_worker_needs_no_imports_beyond_its_own() -> None:
    """Each configuration starts one, so it has to start fast: no rich, no typer, no matplotlib."""
    import subprocess

    code = "import sys, hexane.bench.worker; print(sorted({'rich', 'typer', 'matplotlib'} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (103812.4, "103,812"),
        (1038.04, "1,038"),
        (10.384, "10.38"),
        (0.0103812, "0.01038"),
        (0.0, "0"),
        (9.9999e5, "999,990"),
    ],
)
def test_figures_have_four_digits_and_no_exponent(value: float, text: str) -> None:
    assert figure(value) == text
