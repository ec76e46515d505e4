"""`hexane check`: which chips run a network, and why not. The report as text, as JSON, and as a page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

import hexane
from hexane import _core, sources
from hexane.cli.errors import command
from hexane.cli.given import Given, Known, read_graph
from hexane.cli.inputs import ADVICE, random_line, with_random
from hexane.cli.model import choices, dtype_of
from hexane.cli.on_inputs import MOST_RUN, run_on_inputs, wrong_outputs
from hexane.cli.options import (
    CalibrationFiles,
    Debug,
    Function,
    Inputs,
    InputShapes,
    Json,
    ModelFile,
    Precision,
    Preprocessing,
    Repair,
    Repairs,
    Tolerance,
    Values,
    names_of,
)
from hexane.cli.output import print_json, print_table, working
from hexane.errors import Error
from hexane.graph import Graph
from hexane.graph.decisions import Decision, counted
from hexane.options import Options
from hexane.passes.repair import repair as repair_of
from hexane.passes.repair import repairs_of, without_repair
from hexane.report import Entry, Report, html_page
from hexane.report.advice import listed, others_known, told, what_to_do
from hexane.report.conditions import Conditions, errors_on, parse_conditions
from hexane.report.coreml_plan import HEAD as PLAN_HEAD
from hexane.report.coreml_plan import ComparedPlan, compare_plan
from hexane.report.legend import legend
from hexane.report.model_ports import ports_of
from hexane.report.on_inputs import OnInputs, Seen, range_lines, ranges_of, scale_line, unknown_line
from hexane.report.outcome import answer
from hexane.report.preflight import examine
from hexane.report.report import (
    HEAD,
    SEGMENT_HEAD,
    SEGMENT_MEANINGS,
    WORDS,
    no_mil,
    reads_packed,
    verdict_legend,
    word_of,
)
from hexane.report.rules import Finding
from hexane.runtime import coreml_library
from hexane.targets import Chip, Family
from hexane.targets.detect import detect_name
from hexane.targets.first_chips import first_chips
from hexane.targets.query import chip_names, load_chip, products_without_mil
from hexane.targets.tables import table

SOMEWHERE_NOT = 3
ALL = "all"
MOST_REPAIRS = 5  # Most repairs that are listed.
MOST_NUMBERS = 12  # Most node numbers in an error.


class OwnDtype(str, Enum):
    """--dtype: adds a report on this CPU."""

    AUTO = "auto"


@command
def check(
    model: ModelFile,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help=(
                "Chips or devices, with commas between them: A14,M5 or iphone 12,h17; all: every chip of a product that"
                " takes programs in MIL. [default: this machine's, else all]"
            ),
        ),
    ] = None,
    unowned: Annotated[
        bool,
        typer.Option("--all", help="Let `all` include chips that are in no product: reference targets and variants."),
    ] = False,
    node: Annotated[
        str | None, typer.Option(metavar="N", help="Show one op in full: its number in the graph, or its name.")
    ] = None,
    input_shape: InputShapes = None,
    inputs: Inputs = None,
    values: Values = None,
    calibration: CalibrationFiles = None,
    preprocess: Preprocessing = None,
    function: Function = None,
    repair: Repairs = Repair.ON,
    dtype: Annotated[
        OwnDtype | None,
        typer.Option(
            help="auto: also list the products that `hexane compile --dtype auto` computes in bf16 on this CPU."
        ),
    ] = None,
    tolerance: Tolerance = None,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write a page with everything for a browser: filters, and each op's reasons."
        ),
    ] = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT",
            help="Exit code 3 only if one of these conditions holds: host, rejected, oversize, decomposed, segments=3,"
            " error=1e-2; commas between them. error: relative L2 of an output from the model in its own dtypes, the"
            " largest on --calibration, else on --input; on random inputs it is only advice.",
        ),
    ] = None,
    measured: Annotated[
        bool,
        typer.Option(
            "--measured",
            help="On a Mac: what Core ML plans for each op (macOS 14.4), next to the forecast for the first chip.",
        ),
    ] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show for each op whether a chip runs it, and if not, why, by which source, and what to write instead.

    With --input for all inputs, or with --calibration, the programs of the first chips run on this CPU. The report then
    shows how far the outputs are off and which op causes it.

    \b
    hexane check net.onnx --target A14,M4
    hexane check net.onnx --target M4 --fail-on error=1e-2 --calibration photos \\
        --preprocess 'mean=123.7,116.3,103.5 scale=0.017'

    Exit code 0: the engine of every named chip runs all ops; 3: the CPU runs some, or the outputs on --input are off
    by more than 1 %. With --fail-on: 3 if one of its conditions holds.
    """
    source = sources.open_network(model, function=function, where="check")
    if html is not None and html.exists() and html.samefile(model):
        raise Error(f"[check] {html}: got the model itself as the page, need another file")
    conditions = None if fail_on is None else parse_conditions(fail_on)
    chips = _chips(target, unowned)
    with working(f"importing {model.name}"):
        given = Given.of(input_shape, inputs, values, calibration=calibration, preprocess=preprocess)
        graph, known = read_graph(source, given)
    graph = graph if repair is Repair.ON else without_repair(graph)
    reports = examine(graph, chips, model.name)
    of_file = _of_package(source)
    plan = _measured(source, graph, reports[0], known) if measured else None
    if html is not None:
        _core.save_file(str(html), html_page(reports).encode("utf-8", "xmlcharrefreplace"))
    ranges, runs, where = _on_inputs(graph, reports, known)
    chosen = _chosen(graph, dtype, tolerance, known)
    failed = None if conditions is None else _failed(conditions, graph, reports, known)
    if json:
        record = _record(model, reports, node)
        record["repairs"] = [list(d) for d in repairs_of(repair_of(graph, reports[0].chip))]
        record |= {"package": [finding.record() for finding in of_file]} if source.form == "coreml" else {}
        record |= {"measured": plan.record()} if plan is not None else {}
        record |= {"dtype": [decision._asdict() for decision in chosen]} if chosen else {}
        record |= {"ranges": [seen.record() for seen in ranges]} if ranges else {}
        for run in runs:
            (target_record,) = [one for one in record["targets"] if one["target"] == run.chip.name]
            target_record["on_inputs"] = run.record()
        record["ok"] = record["ok"] and all(run.ok for run in runs)
        print_json(record if failed is None else {**record, **failed.record()})
    elif node is not None:
        _print_node(reports, node)
    else:
        for line in wrong_outputs(runs, where):
            print(line)
        _print_report(reports[0]) if len(reports) == 1 else _print_matrix(
            reports, _heads(chips, target), _left_out(chips, target)
        )
        if of_file:
            print("\n  ".join(["\nwhat Core ML does with this file:", *map(str, of_file)]))
        if plan is not None:
            print(f"\n{plan.summary}\n")
            print_table(PLAN_HEAD, [op.row() for op in plan.ops], right=("cost",))
        if chosen:
            print(f"\ndtype auto on this CPU: {chosen[0].reason}\n")
            print_table(("product", "dtype", "why"), [(d.node, d.verdict, d.reason) for d in chosen[1:]])
        _print_numbers(graph, ranges, runs, reports, where)
    if failed is not None and not json:
        _print_failed(reports, failed)
    fine = all(report.ok for report in reports) and all(run.ok for run in runs)
    if any(failed.failed.values()) if failed is not None else not fine:
        raise typer.Exit(SOMEWHERE_NOT)


def _of_package(source: sources.Module) -> tuple[Finding, ...]:
    """Returns findings about a Core ML model's file; none for other formats."""
    if source.form != "coreml":
        return ()
    from hexane.importers.coreml.model import open_model  # late import: only for Core ML models
    from hexane.report.package_rules import find_package_rules

    model = open_model(source.source)
    return find_package_rules(model, source.asked or model.functions[0])


def _chosen(graph: Graph, dtype: OwnDtype | None, tolerance: float | None, known: Known) -> list[Decision]:
    """Returns the choices of the dtype "auto" on this CPU; the first one is about the whole network."""
    asked = dtype_of(None if dtype is None else Precision.AUTO, tolerance, known)
    if not asked:
        return []
    with working("measuring products in fp32 and bf16"):
        compiled = hexane.compile(graph, target="host", dtype=asked)
    assert isinstance(compiled, hexane.Model)
    return choices(compiled)


def _measured(source: sources.Module, graph: Graph, report: Report, known: Known) -> ComparedPlan:
    """Returns Core ML's plan of the file, or of a package written for it. Raises Error without Core ML."""
    from hexane.runtime.coreml_model import compile_on_coreml  # late import: most checks do not need it

    coreml_library.own_coreml("check")
    with working("asking Core ML"):
        opened = source if source.form == "coreml" else sources.open_network(graph, where="check")
        given = (known.shapes, known.values) if source.form == "coreml" else ({}, {})
        compiled = compile_on_coreml(opened, Options(device="coreml"), *given)
        return compare_plan(report, compiled.compute_plan())


def _on_inputs(graph: Graph, reports: Sequence[Report], known: Known) -> tuple[tuple[Seen, ...], list[OnInputs], str]:
    """Returns ranges of ops, the first chips' results, and the name of the input that both are from. No results if the
    user left out an input."""
    run = run_on_inputs(graph, [report.chip for report in reports], known, "check")
    if run is None:
        return (), [], ""
    with working("running on the inputs"):
        return ranges_of(graph, run.feed), run.results, run.where


def _print_numbers(
    graph: Graph, ranges: Sequence[Seen], runs: Sequence[OnInputs], reports: Sequence[Report], where: str
) -> None:
    repaired = repair_of(graph, reports[0].chip)
    if changes := repairs_of(repaired):
        first = dict.fromkeys(f"{d.node}: {d.reason}" for d in changes)
        print(f"\nrepaired, {counted(len(changes), 'place')} (--repair off leaves them):")
        for line in list(first)[:MOST_REPAIRS]:
            print(f"  {line}")
        if len(first) > MOST_REPAIRS:
            print(f"  and {len(first) - MOST_REPAIRS} more (--json has all)")
    if not runs:
        lines = [line for line in (unknown_line(repaired), scale_line(repaired)) if line]
        if lines:
            print("\n" + "\n".join(lines))
        return
    print(f"\non {where}, in the engine's arithmetic on this CPU:")
    for text in (*range_lines(ranges), *(line for run in runs for line in run.lines)):
        print(f"  {text}")
    if len(reports) > len(runs):
        print(f"  not run: {counted(len(reports) - len(runs), 'other chip')} (name up to {MOST_RUN} to run them)")


@dataclass(frozen=True, slots=True)
class _Failed:
    """The conditions of --fail-on that hold for each chip. advice: errors on random inputs, which do not fail the
    check. inputs: the inputs on which errors were measured; "" if none were needed."""

    failed: Mapping[str, list[str]]
    advice: Mapping[str, list[str]]
    inputs: str

    def record(self) -> dict[str, Any]:
        """The result as a JSON object."""
        record: dict[str, Any] = {"ok": not any(self.failed.values()), "failed": dict(self.failed)}
        return record | ({"advice": dict(self.advice), "inputs": self.inputs} if self.inputs else {})


def _failed(conditions: Conditions, graph: Graph, reports: Sequence[Report], known: Known) -> _Failed:
    """Tests the conditions. If any input is random, errors are only advice."""
    failed = {report.chip.name: conditions.broken(report) for report in reports}
    if conditions.error is None:
        return _Failed(failed, {}, "")
    ports = ports_of(graph)
    feeds = ((label, with_random(ports, feed)) for label, feed in known.named_feeds())
    errors = errors_on(reports[0].graph, list(failed), feeds)
    inaccurate = {name: conditions.too_far([one for one in errors if one.target == name]) for name in failed}
    if line := random_line(ports, known.arrays):
        return _Failed(failed, inaccurate, line)
    count = len({one.feed for one in errors})
    given = "inputs: as given" if known.feeds is None else f"inputs: {count} of {known.feeds.path}"
    return _Failed({name: [*causes, *inaccurate[name]] for name, causes in failed.items()}, {}, given)


def _print_failed(reports: Sequence[Report], failed: _Failed) -> None:
    lines = [f"{report.chip.label}: {text}" for report in reports for text in failed.failed[report.chip.name]]
    print("\n--fail-on: " + ("passed" if not lines else "\n  ".join(["failed", *lines])))
    if failed.inputs:
        print(failed.inputs + (f"; {ADVICE}" if failed.advice else ""))
    for report in reports:
        for text in failed.advice.get(report.chip.name, []):
            print(f"  advice: {report.chip.label}: {text}")


def _chips(given: str | None, unowned: bool) -> list[Chip]:
    """Returns the chips named in a list without duplicates, in order. unowned: "all" includes chips without a
    product."""
    if given is None:
        machine = detect_name()
        given = ALL if unowned or machine.target == "host" else machine.written
    names = names_of(given)
    if not names:
        raise typer.BadParameter(f"--target: got {given!r}, need names of chips, or all")
    chips: dict[str, Chip] = {}
    floor = Family[table("floors")["mil"]["floor"]]
    for name in names:
        every = name.lower() == ALL
        for one in chip_names(all=unowned) if every else [name]:
            chip = load_chip(one)
            if not every or chip.family >= floor:
                known = chips.get(chip.name, chip)
                chips[chip.name] = replace(
                    known, asked=", ".join(dict.fromkeys(filter(None, (known.asked, chip.asked))))
                )
    return list(chips.values())


def _heads(chips: Sequence[Chip], given: str | None) -> dict[str, str]:
    """Returns column heads: the name that the user gave, or the popular name followed by the chip's own."""
    named = {name.lower() for name in names_of(given or "")}
    return {
        chip.name: chip.name if chip.name in (*named, chip.lead) else f"{chip.lead} ({chip.name})" for chip in chips
    }


def _find(report: Report, wanted: str) -> list[Entry]:
    """Returns the ops with this number, or from the node with this name."""
    entries = [e for e in report.entries if str(e.number) == wanted] or [
        e for e in report.entries if wanted in e.node.sources
    ]
    if not entries:
        count, alike = len(report.entries), [str(e.number) for e in report.entries if e.op == wanted]
        more = ", and more" if len(alike) > MOST_NUMBERS else ""
        of_op = f" ({wanted}: {', '.join(alike[:MOST_NUMBERS])}{more})" if alike else ""
        need = f"a number below {count}{of_op}, or the name of a node of the model"
        raise Error(f"[check] --node: got {wanted!r}, need {need}")
    return entries


def _record(model: Path, reports: Sequence[Report], node: str | None) -> dict[str, Any]:
    records = []
    for report in reports:
        record = report.record()
        if node is not None:
            record["nodes"] = [entry.record() for entry in _find(report, node)]
        records.append(record)
    return {
        "model": str(model),
        "ok": all(report.ok for report in reports),
        "verdict": answer(report.outcome for report in reports),
        "what_to_do": [one.record() for one in what_to_do(reports)],
        "targets": records,
    }


def _print_report(report: Report) -> None:
    print("\n".join([report.summary, *told(report.advice, 1)]))
    print(report.weights_line)
    if report.latency_line:
        print(report.latency_line)
    for doubt in report.doubts:
        print(doubt)
    if rows := list(report.rows()):
        print()
        print_table(HEAD, rows)
    if report.legend:
        print(f"\n{report.legend}")
    if len(report.segments) > 1:
        print(f"\n{report.cut_summary}\n")
        print_table(SEGMENT_HEAD, list(report.segment_rows()), right=("ops",))
        print(f"\n{legend('columns', SEGMENT_MEANINGS)}")
    _print_findings([report])


def _print_findings(reports: Sequence[Report]) -> None:
    """Prints known facts about the ops; a fact that does not hold on all chips names its chips."""
    if others := others_known(reports):
        print("\n  ".join(["\nknown of these ops:", *listed(others, len(reports))]))


def _print_node(reports: Sequence[Report], wanted: str) -> None:
    for report in reports:
        for entry in _find(report, wanted):
            v = entry.verdict
            print(f"{entry.number}: {entry.op} -> {entry.type}" + (f" at {entry.where}" if entry.where else ""))
            print(f"  {report.chip.label}: {v.verdict}: {v.reason}")
            said = "the compiler says" if v.published else "in our words"
            lines = (
                ("rule", _rule(v.rule)),
                (said, v.reject),
                ("source", f"{v.source}, {v.status}"),
                ("instead", v.change),
            )
            for name, text in lines:
                if text:
                    print(f"    {name}: {text}")
            if report.mil is not None:
                print(f"    in MIL: {report.mil.verdict}: the compiler says: {report.mil.reject}")
            for claim in v.claims:
                print(f"    {claim.source} ({claim.status}): {claim.value}")
    verdicts = [entry.verdict for report in reports for entry in _find(report, wanted)]
    cited = [f"{v.source}, {v.status}" for v in verdicts]
    cited += [f"{claim.source}, {claim.status}" for v in verdicts for claim in v.claims]
    print(f"\n{verdict_legend((v.verdict for v in verdicts), cited)}")


def _rule(rule: str) -> str:
    """Returns a verdict's rule, with chips in place of the compiler's name of a group of chips."""
    name, _, family = rule.rpartition(" ")
    begins = {"MIL floor": "in MIL from", "declared floor": "declared from"}.get(name)
    return rule if begins is None else f"{begins} {first_chips(Family[family])} on"


def _least(reports: Sequence[Report]) -> str:
    """Returns the range of the reports' lower bounds of latency in us; a dash if the engine computes nothing."""
    latencies = [f"{report.latency.us:.0f}" for report in reports if report.latency is not None]
    return " to ".join(dict.fromkeys((min(latencies, key=int), max(latencies, key=int)))) if latencies else "-"


def _row_meanings(reports: Sequence[Report]) -> dict[str, str]:
    """Returns the meanings of the rows under the ops of a matrix."""
    alike = all(
        report.outcome.kind == "whole" or report.outcome.engine + report.outcome.host == len(report.entries)
        for report in reports
    )
    written = (
        "" if alike else "; it counts the ops as written for the chip: an op of the model may become several or none"
    )
    return {
        "verdict": f"where the network runs{written}",
        "segments": "parts of the network, each on one device, that run in order",
        "engine segments": "segments on the Neural Engine",
        "values between devices": "results that one segment computes and another reads",
        "estimate at least, us": (
            "`hexane estimate` gives no less; a real call may be faster (its p10); for several chips in a column, the"
            " lowest and the highest bound"
        ),
    }


def _left_out(chips: Sequence[Chip], given: str | None) -> str:
    """Returns a line on the products that "all" leaves out; "" for chips that the user named."""
    floor = Family[table("floors")["mil"]["floor"]]
    if (given is not None and ALL not in map(str.lower, names_of(given))) or any(chip.family < floor for chip in chips):
        return ""
    return f"left out, as they take no programs in MIL: {', '.join(products_without_mil())}"


def _print_matrix(reports: Sequence[Report], heads: Mapping[str, str], left_out: str) -> None:
    """Prints ops by targets. Chips with equal verdicts for every op, and for the network, share a column. left_out: a
    line for the report; "" for none."""
    columns: dict[tuple[str, ...], list[Report]] = {}
    for report in reports:
        key = str(report.outcome), *(word_of(e.verdict) for e in report.entries)
        columns.setdefault(key, []).append(report)
    shared = list(columns.values())
    first = [group[0] for group in shared]
    ops = counted(len(first[0].entries), "op")
    print(f"{first[0].name} {answer(report.outcome for report in reports)}; the model has {ops}")
    if left_out:
        print(left_out)
    for line in told(what_to_do(reports), len(reports)):
        print(line)
    print()
    rows: dict[str, list[int]] = {}
    for entry in first[0].entries:
        worst = rows.setdefault(entry.op, [0] * len(first))
        for i, report in enumerate(first):
            worst[i] = max(worst[i], WORDS.index(word_of(report.entries[entry.number].verdict)))
    head = (
        "op",
        *(
            heads[report.chip.name] + ("+" if len(group) > 1 else "")
            for report, group in zip(first, shared, strict=True)
        ),
    )
    runs = ("verdict", *(str(report.outcome) for report in first))
    cuts = [
        ("segments", *(str(len(r.segments)) for r in first)),
        ("engine segments", *(str(r.engine_segments) for r in first)),
        ("values between devices", *(str(len(r.crossings)) for r in first)),
        ("estimate at least, us", *(_least(group) for group in shared)),
    ]
    print_table(head, [*((op, *(WORDS[i] for i in worst)) for op, worst in rows.items()), runs, *cuts])
    print(f"\n{legend('rows below the ops', _row_meanings(first))}")
    for group in shared:
        if len(group) > 1:
            print(f"\n{heads[group[0].chip.name]}+ stands for {'; '.join(heads[report.chip.name] for report in group)}")
    refused = {heads[report.chip.name]: report.mil.reject for report in reports if report.mil is not None}
    for said in dict.fromkeys(refused.values()):
        which = [name for name, words in refused.items() if words == said]
        print(f"\nneed a netplist: {'; '.join(which)}: {no_mil(said, len(which))}")
    print(f"\nweights: {reports[0].weights}")
    for streams in dict.fromkeys(report.streams for report in reports):
        names = "; ".join(heads[report.chip.name] for report in reports if report.streams == streams)
        print(f"{reads_packed(streams, ';' in names)}: {names}")
    reasons: dict[tuple[str, ...], list[str]] = {}
    for report in reports:
        for row in report.rows():
            reasons.setdefault(row, []).append(heads[report.chip.name])
    if reasons:
        print()
        every = len(reports)
        print_table(
            (*HEAD, "chips"), [(*row, "all" if len(on) == every else "; ".join(on)) for row, on in reasons.items()]
        )
    shown = (word_of(entry.verdict) for report in first for entry in report.entries)
    if words := verdict_legend(shown, (text for report in reports for text in report.cited)):
        print(f"\n{words}")
    _print_findings(reports)
