"""The report of a machine as one HTML file that works offline."""

from typing import Any

from hexane.report.html_document import html_document
from hexane.report.mac.beliefs import BELIEFS, HOLDS, OTHERWISE
from hexane.report.mac.facts import RANK, outcome_of, proposed_facts
from hexane.report.mac.record import MachineReport


def machine_page(report: MachineReport) -> str:
    """Returns the page: machine, beliefs, the catalogue by outcome, the proposed facts, and every record with its
    logs."""
    beliefs = [(belief, belief.decide(report)) for belief in BELIEFS]
    counts = {state: sum(v.state == state for _, v in beliefs) for state in (HOLDS, OTHERWISE, "open")}
    words = f"{report.name}: {counts[HOLDS]} beliefs hold, {counts[OTHERWISE]} do not, {counts['open']} are open."
    data: dict[str, Any] = {
        "name": report.name,
        "head": report.head,
        "machine": report.machine,
        "words": words,
        "beliefs": [
            {
                "text": belief.text,
                "source": belief.source,
                "case": ": ".join(belief.decided_by),
                "state": verdict.state,
                "found": verdict.found,
                "otherwise": belief.otherwise if verdict.state == OTHERWISE else "",
            }
            for belief, verdict in beliefs
        ],
        "catalogue": [
            {
                "case": record["case"],
                "outcome": outcome_of(record),
                "error": record.get("values", {}).get("error", record.get("error", "")),
                "programs": record.get("values", {}).get("programs", ""),
                "host": record.get("values", {}).get("host_steps", ""),
                "verdicts": _joined(record.get("values", {}).get("verdicts")),
            }
            for record in report.of("catalogue")
        ],
        "outcomes": list(RANK),
        "facts": proposed_facts(report),
        "records": [record for record in report.records if record["probe"] != "catalogue"],
        "logs": report.logs,
    }
    return html_document(
        f"{report.name}: engine", words, data, ("page.css", "machine.css"), ("common.js", "machine.js")
    )


def _joined(names: Any) -> str:
    return ", ".join(map(str, names)) if isinstance(names, list) else ""
