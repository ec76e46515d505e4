"""Behaviour of a Mac's Neural Engine, probed and read by `hexane doctor`, --report and --read-report."""

from hexane.report.mac.collect import collect, new_salt
from hexane.report.mac.facts import proposed_facts
from hexane.report.mac.page import machine_page
from hexane.report.mac.probe import Context
from hexane.report.mac.record import MachineReport, read_report

__all__ = ["Context", "MachineReport", "collect", "machine_page", "new_salt", "proposed_facts", "read_report"]
