"""The facts that a report proposes, as TOML to be read by a person and copied into targets/."""

import json
from typing import Any

from hexane.report.mac.beliefs import BELIEFS, DISPATCH_FACTS
from hexane.report.mac.record import MachineReport

NEAR = 0.01  # results within this relative distance differ by rounding


def proposed_facts(report: MachineReport) -> str:
    """Returns TOML text. [dispatch] has the keys of shared/dispatch.toml, [framework] the values that decided beliefs,
    [ops] the ops of the catalogue with other numbers than on the CPU. The probed machine is the source of every
    value."""
    chip, system = report.machine.get("chip", "unknown"), report.machine.get("system", "unknown")
    lines = [
        "# Proposed by hexane doctor --read-report. Read the page of the report before you copy a line.",
        f"source = {_text(f'hexane doctor, {report.name}')}",
        'status = "measured"',
        f"chip = {_text(chip)}",
        f"os = {_text(system)}",
        f"build = {_text(report.machine.get('build', ''))}",
    ]
    decided = [(belief, belief.decide(report)) for belief in BELIEFS]
    facts = {b.name: v.fact for b, v in decided if v.state != "open" and v.fact is not None}
    sections = {
        "dispatch": {name: facts[name] for name in DISPATCH_FACTS if name in facts},
        "framework": {name: value for name, value in facts.items() if name not in DISPATCH_FACTS},
        "ops": _ops(report),
    }
    for name, values in sections.items():
        if values:
            lines += ["", f"[{name}]", *(f"{_key(key)} = {_value(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _ops(report: MachineReport) -> dict[str, str]:
    """Returns by op the worst outcome of its cases. Ops with the same bits, or on the host only, are left out."""
    by_op: dict[str, str] = {}
    for record in report.of("catalogue"):
        op = record["case"].rpartition(" ")[0]
        said = outcome_of(record)
        if said not in ("same bits", "host") and RANK.index(said) > RANK.index(by_op.get(op, "same bits")):
            by_op[op] = said
    return dict(sorted(by_op.items()))


RANK = ("same bits", "host", "another rounding", "wrong", "error", "no answer", "crash")


def outcome_of(record: dict[str, Any]) -> str:
    """Returns the outcome of a case of the catalogue, a word of RANK."""
    if record["outcome"] != "done":
        return str(record["outcome"])
    values = record["values"]
    if not values.get("programs"):
        return "host"
    if values.get("same_bits"):
        return "same bits"
    error = values.get("error")
    return "another rounding" if isinstance(error, (int, float)) and error <= NEAR else "wrong"


def _key(name: str) -> str:
    return name if name.replace("_", "").isalnum() and name.isascii() else _text(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else _text(str(value))


def _text(text: str) -> str:
    whole = text.encode("utf-8", "replace").decode()  # TOML has no lone surrogates
    return json.dumps(whole, ensure_ascii=False).replace("\x7f", "\\u007f")
