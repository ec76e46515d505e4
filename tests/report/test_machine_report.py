"""A report of a machine: every probe against the stand-in, ill stand-ins, probes that hang and crash, and the reader."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

import hexane as hx
from hexane.bench import Configuration
from hexane.report.mac import machine_page, proposed_facts, read_report
from hexane.report.mac.beliefs import BELIEFS, belief_table
from hexane.report.mac.benchmarks import BENCHMARKS
from hexane.report.mac.collect import collect
from hexane.report.mac.facts import RANK, outcome_of
from hexane.report.mac.interface import ATTRIBUTES, INTERFACE, SELF_TEST, SYSTEM
from hexane.report.mac.lifecycle import ERRORS, FORK, KEPT, LIFECYCLE, THREADS, WEIGHTS
from hexane.report.mac.limits import ARGUMENTS, BLOBS, MANY, SPELLING, SURFACES
from hexane.report.mac.probe import Probe
from hexane.report.mac.probes import PROBES
from hexane.report.mac.record import FORMAT, VERSION, MachineReport
from hexane.report.mac.reductions import REDUCTIONS
from hexane.report.mac.worker import _plain, run_case
from hexane.targets.tables import parse_toml
from machine_reports import context, report_here, report_of, worker_program
from stand_in import MODES

ROOT = Path(__file__).parents[2]
FAST = (SYSTEM, INTERFACE, SELF_TEST, ATTRIBUTES, LIFECYCLE, KEPT, WEIGHTS, ERRORS, SPELLING, ARGUMENTS, BLOBS,
        SURFACES, THREADS, FORK, REDUCTIONS, MANY)  # fmt: skip


def states(report: MachineReport) -> dict[str, str]:
    return {belief.name: belief.decide(report).state for belief in BELIEFS}


@pytest.fixture(scope="module")
def healthy() -> MachineReport:
    """All probes but the catalogue."""
    return report_here(FAST, salt="well")


def test_every_case_of_a_healthy_engine_comes_to_an_end(healthy: MachineReport) -> None:
    asked = [(probe.name, case) for probe in FAST for case in probe.cases]
    assert [(record["probe"], record["case"]) for record in healthy.records] == asked
    assert {record["outcome"] for record in healthy.records} == {"done", "error"}


def test_the_stand_in_holds_what_hexane_believes(healthy: MachineReport) -> None:
    found = states(healthy)
    open_ones = {"engine_arithmetic", "compile_limit", "load_limit"}  # not asked, or not for so many
    assert {name for name, state in found.items() if state == "open"} == open_ones
    assert {name for name, state in found.items() if state == "is otherwise"} == {"unequal_inputs", "scalar_in_file"}


def test_attributes_are_there_for_ports_of_each_rank(healthy: MachineReport) -> None:
    ranks = {len(record["values"]["shape"]): record["values"] for record in healthy.of("attributes")}
    assert sorted(ranks) == [1, 2, 3, 4]
    (live,) = ranks[1]["attributes"]["NetworkStatusList"][0]["LiveInputList"]
    assert (live["Width"], live["RowStride"]) == (10, 64)


@pytest.mark.slow
def test_what_one_process_keeps_another_finds_until_it_is_purged(tmp_path: Path) -> None:
    report = report_of(tmp_path, [KEPT], worker_program(), salt="kept")
    assert report.values("kept", "find in another process")["counters"]["compiled"] == 0
    found = states(report)
    assert (found["keeps_programs"], found["purge_forgets"]) == ("holds", "holds")


@pytest.mark.parametrize(
    ("switches", "probe", "otherwise"),
    [
        ({"says_exists": 0}, KEPT, {"keeps_programs"}),
        ({"unload_deletes": 0}, LIFECYCLE, {"unload_deletes"}),
        ({"load_compiles": 0}, LIFECYCLE, {"load_compiles"}),
        ({"hash_bundle": 0}, WEIGHTS, {"several_files"}),
        ({"float_type": 1}, SELF_TEST, set()),
    ],
)
def test_an_engine_that_is_otherwise_is_seen(switches: dict[str, int], probe: Probe, otherwise: set[str]) -> None:
    report = report_here([probe], "".join(switches), **switches)
    assert {name for name, state in states(report).items() if state == "is otherwise"} == otherwise


@pytest.mark.slow
def test_limits_are_where_the_service_stops(tmp_path: Path) -> None:
    report = report_of(tmp_path, [MANY], worker_program(compile_limit=3), salt="limits")
    assert report.values("limits", "compiles")["worked"] == 3
    assert "the framework failed and says nothing" in report.values("limits", "compiles")["error"]
    assert states(report)["compile_limit"] == "is otherwise"
    facts = parse_toml(proposed_facts(report), "facts")
    assert facts["dispatch"]["compile_limit"] == 3


# Those that no other test of one probe has.
FEW = ("compile writes no files", "compile takes kept programs", "errors without causes")


@pytest.mark.parametrize("mode", [m if m in FEW else pytest.param(m, marks=pytest.mark.slow) for m in MODES])
def test_every_probe_ends_in_each_mode(mode: str) -> None:
    report = report_here(FAST, str(list(MODES).index(mode)), **MODES[mode])
    assert {record["outcome"] for record in report.records} <= {"done", "error"}
    assert machine_page(report)


@pytest.mark.slow
def test_the_whole_catalogue_is_asked(tmp_path: Path) -> None:
    (catalogue,) = (probe for probe in PROBES if probe.name == "catalogue")
    report = report_of(tmp_path, [catalogue], worker_program(), salt="catalogue")
    assert [record["case"] for record in report.records] == list(catalogue.cases)
    outcomes = [outcome_of(record) for record in report.records]
    assert set(outcomes) <= {"same bits", "host", "another rounding", "error"}
    assert outcomes.count("same bits") > 250
    # The stand-in reads no scalar from a file, as which infinity is written.
    errors = [record["error"] for record in report.records if record["outcome"] == "error"]
    assert all("BLOBFILE of another form" in error for error in errors)


def test_benchmarks_are_asked_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a document of `hexane bench` with one result; an error in it is the case's."""

    def run(given: list[Configuration], device: str) -> dict[str, object]:
        (one,) = given
        found = {"error": "a wrong result"} if one.probe == "int8" else {"times_us": {"p50": 1.5}}
        return {"results": [{"name": one.name, **found}], "environment": {"power": "mains"}}

    monkeypatch.setattr("hexane.report.mac.benchmarks.run", run)
    report = report_here([BENCHMARKS])
    outcomes = {record["case"].split()[0]: record["outcome"] for record in report.records}
    assert outcomes == {"dispatch": "done", "threads": "done", "peak": "done", "sram": "done", "int8": "error"}
    assert report.records[0]["values"]["power"] == "mains"


BROKEN = """
import os, signal, time
from hexane.report.mac.probes import THREADS, SYSTEM
THREADS.cases["two programs"] = lambda context: time.sleep(1000)
SYSTEM.cases["machine"] = lambda context: os.kill(os.getpid(), signal.SIGSEGV)
"""


@pytest.mark.slow
def test_cases_that_hang_or_crash_are_results_and_the_rest_goes_on(tmp_path: Path) -> None:
    probes = [SYSTEM, replace(THREADS, per_process=9), SELF_TEST]
    report = report_of(tmp_path, probes, worker_program(BROKEN), salt="broken", limit=2.0)
    said = [(record["probe"], record["case"], record["outcome"]) for record in report.records]
    assert said == [
        ("machine", "machine", "crash"),
        ("recovery", "after machine: machine", "done"),
        ("threads", "two programs", "no answer"),
        ("recovery", "after threads: two programs", "done"),
        ("threads", "one program", "done"),
        ("self test", "self test", "done"),
    ]
    assert report.records[0]["error"] == "the process ended with signal 11"
    assert "Segmentation fault" in report.logs["machine-machine-printed.txt"]
    assert states(report)["threads"] == "open"


@pytest.mark.slow
def test_a_driver_that_never_answers_ends_with_its_process(tmp_path: Path) -> None:
    report = report_of(tmp_path, [SELF_TEST], worker_program(stall_ms=60_000), salt="stall", limit=1.0)
    assert [record["outcome"] for record in report.records] == ["no answer", "no answer"]
    assert report.records[1]["probe"] == "recovery"


def test_a_process_that_does_not_start_is_a_result(tmp_path: Path) -> None:
    report = report_of(tmp_path, [SELF_TEST], "import sys; sys.exit('no such thing')", salt="start")
    assert report.records[0]["error"] == "the process ended with code 1"
    assert report.logs["self_test-self_test-printed.txt"] == "no such thing\n"


def test_an_interrupted_report_is_written_with_what_there_is(tmp_path: Path) -> None:
    def told(record: dict[str, object]) -> None:
        raise KeyboardInterrupt

    report = report_of(tmp_path, [SELF_TEST, LIFECYCLE], worker_program(), salt="interrupted", told=told)
    assert [record["probe"] for record in report.records] == ["self test"]
    assert report.head["interrupted"] is True
    assert [path.suffix for path in tmp_path.iterdir()] == [".zip"]


def test_a_report_that_cannot_be_written_whole_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
    with pytest.raises(hx.Error, match="cannot be written: no space left"):
        collect(tmp_path, context("full"), probes=[SELF_TEST], program=worker_program())
    assert list(tmp_path.glob("*.zip")) == []
    assert len(list(tmp_path.glob("*.jsonl"))) == 1  # what was found is not lost


def test_the_page_shows_what_a_report_says_as_data(healthy: MachineReport) -> None:
    ill = {**healthy.records[0], "values": {"chip": "<script>alert(1)</script>", "system": "macOS 26", "build": "25A1"}}
    report = replace(healthy, records=(ill, *healthy.records[1:]), logs={"a.txt": "</script><b>"})
    page = machine_page(report)
    assert "<script>alert" not in page
    assert "</script><b>" not in page
    assert "beliefs hold" in page


def test_proposed_facts_have_chip_system_and_status(healthy: MachineReport) -> None:
    report = replace(
        healthy,
        records=(
            *({**healthy.records[0], "values": {"chip": 'Apple "M3"', "system": "macOS 26.1", "build": "25B78"}},),
            *healthy.records[1:],
            {"probe": "catalogue", "case": "gelu 0", "outcome": "done",
             "values": {"programs": 1, "same_bits": False, "error": 0.5}},
            {"probe": "catalogue", "case": "gelu 1", "outcome": "done",
             "values": {"programs": 1, "same_bits": False, "error": 0.001}},
            {"probe": "catalogue", "case": "tan 0", "outcome": "error", "error": "no"},
        ),
    )  # fmt: skip
    facts = parse_toml(proposed_facts(report), "facts")
    assert (facts["chip"], facts["os"], facts["build"], facts["status"]) == (
        'Apple "M3"', "macOS 26.1", "25B78", "measured",
    )  # fmt: skip
    assert facts["framework"]["row_alignment"] == 64
    assert facts["framework"]["unload_deletes"] is True
    assert facts["ops"] == {"gelu": "wrong", "tan": "error"}
    assert set(facts["ops"].values()) <= set(RANK)


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, "without report.json"),
        ({"report.json": "{}", "results.jsonl": ""}, f"another format, need {FORMAT} {VERSION}"),
        ({"report.json": "[", "results.jsonl": ""}, "no JSON"),
        ({"report.json": "OK", "results.jsonl": "{}"}, "got no record"),
        ({"report.json": "OK", "results.jsonl": '{"probe": "a", "case": "b", "outcome": "done"}'}, "without values"),
    ],
)
def test_what_is_no_report_is_refused(tmp_path: Path, files: dict[str, str], why: str) -> None:
    path = tmp_path / "other.zip"
    with zipfile.ZipFile(path, "w") as file:
        for name, text in files.items():
            file.writestr(name, json.dumps({"format": FORMAT, "version": VERSION}) if text == "OK" else text)
    with pytest.raises(hx.Error, match=why):
        read_report(path)


def test_a_report_of_odd_values_decides_nothing(healthy: MachineReport) -> None:
    odd = tuple({**record, "values": {}} for record in healthy.records if record["outcome"] == "done")
    report = replace(healthy, records=odd)
    assert machine_page(report)
    assert parse_toml(proposed_facts(report), "facts")["chip"] == "unknown"


@pytest.mark.parametrize("chip", ["\U0001f34e\x7f\n", "\ud800", '"]\nstatus = "decoded"'])
def test_facts_are_toml_whatever_a_machine_is_called(healthy: MachineReport, chip: str) -> None:
    odd = {**healthy.records[0], "values": {"chip": chip}}
    case = {"probe": "catalogue", "case": f"{chip} 0", "outcome": "error", "error": "no", "values": {"verdicts": 1}}
    report = replace(healthy, records=(odd, case))
    facts = parse_toml(proposed_facts(report), "facts")
    assert facts["status"] == "measured"
    assert facts["chip"] == chip.encode("utf-8", "replace").decode()
    assert machine_page(report)


def test_no_record_holds_what_a_page_cannot_read() -> None:
    probe = Probe("odd", "?", {"odd": lambda context: {"a": [float("nan")], "b": {1: b"x"}, "c": (True, None, 1.5)}})
    record = _plain(run_case(probe, "odd", context()))
    assert record["values"] == {"a": ["nan"], "b": {"1": "b'x'"}, "c": [True, None, 1.5]}


def test_each_belief_is_decided_by_a_case_that_is_asked() -> None:
    cases = {(probe.name, case) for probe in PROBES for case in probe.cases}
    assert {belief.decided_by for belief in BELIEFS} <= cases
    assert len({belief.name for belief in BELIEFS}) == len(BELIEFS)


def test_the_table_of_the_page_for_macs_is_that_of_the_beliefs() -> None:
    assert belief_table() in (ROOT / "docs" / "macos.md").read_text(encoding="utf-8")
