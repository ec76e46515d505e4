"""What Hexane believes about the engine's framework, and the case of a report that decides each belief."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hexane.report.mac.record import MachineReport
from hexane.targets.dispatch import dispatch

HOLDS, OTHERWISE, OPEN = "holds", "is otherwise", "open"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a belief. state: the belief holds, is false ("otherwise"), or is open. found: the evidence in the
    report. fact: the value for a table of facts, if there is one."""

    state: str
    found: str
    fact: Any = None


@dataclass(frozen=True, slots=True)
class Belief:
    """A belief. name: of the fact. decided_by: probe and case. otherwise: what must change in Hexane if it is false."""

    name: str
    text: str
    source: str
    decided_by: tuple[str, str]
    otherwise: str
    read: Callable[[MachineReport], Verdict]

    def decide(self, report: MachineReport) -> Verdict:
        """Returns the verdict, which is open if the case did not run, or gave no answer."""
        record = report.find(*self.decided_by)
        if record is None:
            return Verdict(OPEN, "it was not asked")
        if record["outcome"] in ("no answer", "crash"):
            return Verdict(OPEN, str(record.get("error", "")))
        try:
            return self.read(report)
        except (KeyError, TypeError, ValueError, AttributeError):  # a report may hold anything
            return Verdict(OPEN, "its record cannot be read")


def _value(case: tuple[str, str], key: str, want: Any = True) -> Callable[[MachineReport], Verdict]:
    """Returns a test: the belief holds if the case found this value. A case with an error decides nothing."""

    def read(report: MachineReport) -> Verdict:
        record = report.find(*case)
        if record is None or record["outcome"] != "done":
            return Verdict(OPEN, "" if record is None else str(record.get("error", "")))
        value = record["values"][key]
        if isinstance(want, bool) and not isinstance(value, bool):
            return Verdict(OPEN, f"{key}: {value}")
        return Verdict(HOLDS if value == want else OTHERWISE, f"{key}: {value}", value)

    return read


def _works(case: tuple[str, str], key: str, want: bool = True) -> Callable[[MachineReport], Verdict]:
    """Returns a test: the belief holds if the case worked (with want=False: did not). A case with an error did not
    work."""

    def read(report: MachineReport) -> Verdict:
        record = report.find(*case)
        if record is None:
            return Verdict(OPEN, "")
        works = record["outcome"] == "done" and bool(record["values"].get(key, True))
        said = str(record["error"]) if record["outcome"] == "error" else "it works" if works else f"{key}: False"
        return Verdict(HOLDS if works == want else OTHERWISE, said, works)

    return read


def _at_least(case: tuple[str, str], limit: int) -> Callable[[MachineReport], Verdict]:
    def read(report: MachineReport) -> Verdict:
        values = report.values(*case)
        if not values:
            return Verdict(OPEN, "")
        worked, asked = int(values["worked"]), int(values["asked"])
        if worked == asked and worked < limit:
            return Verdict(OPEN, f"{worked} worked, and no more were asked for")
        said = f"{worked} of {asked} worked" + (f"; then: {values['error']}" if "error" in values else "")
        fact = worked if worked < asked else None  # without a failure, the limit is unknown
        return Verdict(HOLDS if worked >= limit else OTHERWISE, said, fact)

    return read


def _interface(report: MachineReport) -> Verdict:
    values = report.values("interface", "needed")
    if not values:
        return Verdict(OPEN, "")
    other = values["other"]
    return Verdict(OTHERWISE if other else HOLDS, ", ".join(other) if other else f"{len(values['found'])} parts")


def _rows(report: MachineReport) -> Verdict:
    done = [record["values"] for record in report.of("attributes") if record["outcome"] == "done"]
    strides = [(v["row_bytes"], v["row_stride"]) for v in done if "row_stride" in v]
    if not strides:
        return Verdict(OPEN, "no port could be read")
    said = ", ".join(f"{row} bytes every {stride}" for row, stride in sorted(set(strides)))
    holds = all(stride == -(-row // ROW) * ROW for row, stride in strides)
    return Verdict(HOLDS if holds else OTHERWISE, said, ROW if holds else None)


def _ranks(report: MachineReport) -> Verdict:
    done = [record["values"] for record in report.of("attributes") if record["outcome"] == "done"]
    low = [v for v in done if len(v["shape"]) < 4 and "axes_last" in v]
    wrong = [v["shape"] for v in low if not v["axes_last"]]
    if not low:
        return Verdict(OPEN, "no port of a rank below 4 could be read")
    return Verdict(
        OTHERWISE if wrong else HOLDS, f"otherwise for {wrong}" if wrong else f"{len(low)} shapes", not wrong
    )


def _fork(report: MachineReport) -> Verdict:
    values = report.values("fork", "fork")
    if not values:
        return Verdict(OPEN, "")
    refuses = values["child"].startswith("error") and values["after"] is True
    return Verdict(HOLDS if refuses else OTHERWISE, f"child: {values['child']}; parent after it: {values['after']}")


def _catalogue(report: MachineReport) -> Verdict:
    done = [record["values"] for record in report.of("catalogue") if record["outcome"] == "done"]
    ran = [v for v in done if v.get("programs")]
    if not ran:
        return Verdict(OPEN, "no case ran on an engine")
    same = sum(bool(v["same_bits"]) for v in ran)
    return Verdict(HOLDS if same == len(ran) else OTHERWISE, f"{same} of {len(ran)} cases have the same bits")


ROW = 64  # bytes; the assumed alignment of a row
READ = "decompiled framework of iOS 18.2, read"
SELF_TEST = ("self test", "self test")
BELIEFS = (
    Belief("interface", "The framework has the classes, selectors and encodings of `ane_private.h`.",
           "maderix, ANEForge", ("interface", "needed"),
           "`ane_private.h` learns the other signature as a second form", _interface),
    Belief("self_test_right", "A compiled program runs, with its own weights and rows where the strides say.",
           "maderix", SELF_TEST, "the self-test's words say which part differs: weights, rows or numbers",
           _value(SELF_TEST, "right")),
    Belief("row_alignment", f"Rows of ports begin at multiples of {ROW} bytes.", "maderix",
           ("attributes", "relu of [1, 3, 2, 10]"), "ports take the stride that the chip has; note chip and macOS",
           _rows),
    Belief("low_rank_axes_last", "A port of rank below 4 has its axes last: [10] is [1, 1, 1, 10].", "inferred",
           ("attributes", "relu of [10]"), "`device.h` and `_layout` of `engine.py` place axes otherwise", _ranks),
    Belief("unload_deletes", "An unload deletes the local folder of the program.", READ,
           ("files", "load, unload, load"), "nothing: Hexane deletes a folder that is left",
           _value(("files", "load, unload, load"), "unload_deletes")),
    Belief("loads_again", "A program that was unloaded loads again.", READ, ("files", "load, unload, load"),
           "`Model` makes a program anew in place of loading it again",
           _works(("files", "load, unload, load"), "second")),
    Belief("shares_text", "Programs of one text survive each other's unload.", READ,
           ("files", "two models of one text"), "programs of one text share one load",
           _works(("files", "two models of one text"), "third")),
    Belief("load_compiles", "A load of a program that the service forgot compiles it by itself.", READ,
           ("files", "load of a forgotten program"), "`load` compiles first, and the counters count it there",
           _works(("files", "load of a forgotten program"), "right")),
    Belief("keeps_programs", "The service keeps programs for other processes of one signer.", READ,
           ("kept", "find in another process"), "each process compiles; use `hx.Device(\"ane\", cache=False)`",
           _value(("kept", "find in another process"), "found")),
    Belief("purge_forgets", "`purgeCompiledModel` has the service forget a program.", READ,
           ("kept", "find after the purge"), "a program that does not load is compiled under another text",
           _value(("kept", "find after the purge"), "found", want=False)),
    Belief("new_weights_follow", "Results follow new weights under the same text.", READ,
           ("new weights", "one file"), "the text gets a word of its weights' hash",
           _works(("new weights", "one file"), "all_right")),
    Belief("several_files", "Several weight files are a hash mismatch (macOS 27).", "omlx",
           ("new weights", "several files"), "nothing: Hexane writes one file",
           _works(("new weights", "several files"), "all_right", want=False)),
    Belief("constexpr_attributes", "`constexpr_affine_dequantize` takes attributes in brackets.", "maderix, omlx",
           ("spelling", "attributes"), "`IN_BRACKETS` of `mil/arguments.py` loses the op",
           _works(("spelling", "attributes"), "right")),
    Belief("constexpr_arguments_refused", "Its form with arguments is an InvalidMILProgram.", "maderix, omlx",
           ("spelling", "arguments"), "nothing", _works(("spelling", "arguments"), "right", want=False)),
    Belief("blockwise_arguments", "`constexpr_blockwise_shift_scale` takes arguments.", "coremltools",
           ("spelling", "blockwise"), "int4 weights are written otherwise",
           _works(("spelling", "blockwise"), "right")),
    *(Belief(f"{op}_needs_{argument}", f"`{op}` needs its argument `{argument}`.", "maderix",
             ("arguments", f"{op} without {argument}"), "nothing: Hexane writes all arguments",
             _works(("arguments", f"{op} without {argument}"), "compiles", want=False))
      for op, argument in (("gelu", "mode"), ("rsqrt", "epsilon"), ("concat", "interleave"))),
    Belief("blobs_in_one_file", "A program has 64 weights in one file.", "inferred", ("blobs", "64 in one file"),
           "large models are cut where the first count fails", _works(("blobs", "64 in one file"), "right")),
    Belief("scalar_in_file", "A weight of rank 0 is read from a file.", "inferred",
           ("blobs", "a weight of rank 0"), "nothing: Hexane writes no scalar to the file",
           _works(("blobs", "a weight of rank 0"), "right")),
    Belief("unequal_inputs", "Input surfaces of unequal sizes are refused or read wrongly.", "maderix",
           ("surfaces", "inputs unequal"), "nothing: Hexane makes all inputs of a program as large, and all outputs",
           _works(("surfaces", "inputs unequal"), "right", want=False)),
    Belief("threads", "Threads may use the engine at the same time.", "inferred", ("threads", "two programs"),
           "requests take turns in `ane_request.mm`", _value(("threads", "two programs"), "wrong", want=0)),
    Belief("fork_refused", "A forked child gets an error, and its parent goes on.", "inferred", ("fork", "fork"),
           "`refuse_fork` of `ane.mm`", _fork),
    Belief("compile_limit", f"A process compiles {dispatch().compile_limit} programs.", "maderix",
           ("limits", "compiles"), "`compile_limit` of `dispatch.toml`",
           _at_least(("limits", "compiles"), dispatch().compile_limit)),
    Belief("load_limit", f"A process has {dispatch().load_limit} programs loaded.", "dispatch study",
           ("limits", "loads"), "`load_limit` of `dispatch.toml`",
           _at_least(("limits", "loads"), dispatch().load_limit)),
    Belief("sums_round_behind_their_factor", "A sum is rounded once, behind the factor that follows it.", "inferred",
           ("reductions", "sum of squares times a factor"),
           "layers of sums take no factor; norms are written as means",
           _works(("reductions", "sum of squares times a factor"), "right")),
    Belief("means_hold_large_sums", "A mean is not infinite where its sum is beyond 65504.", "inferred",
           ("reductions", "mean of 20,000"), "means are scaled first",
           _works(("reductions", "mean of 20,000"), "right")),
    Belief("norms_hold_large_deviations", "`layer_norm` holds deviations of 300.", "inferred",
           ("reductions", "layer norm of a deviation of 300"), "norms are written with numbers scaled by their largest",
           _works(("reductions", "layer norm of a deviation of 300"), "right")),
    Belief("engine_arithmetic", "The CPU computes each op with the bits of the engine.", "decoded compiler, inferred",
           ("catalogue", "add 0"), "`stages/engine/rules.py`, for the ops that the page lists", _catalogue),
)  # fmt: skip
DISPATCH_FACTS = ("compile_limit", "load_limit")  # dispatch.toml has facts of the same names.


def belief_table() -> str:
    """The table of docs/macos.md."""
    rows = ["| belief | source | probe, case | if it is otherwise |", "|---|---|---|---|"]
    rows += [f"| {b.text} | {b.source} | {b.decided_by[0]}: {b.decided_by[1]} | {b.otherwise} |" for b in BELIEFS]
    return "\n".join(rows) + "\n"
