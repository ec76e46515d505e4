"""What Hexane tells people about a network: which chips run it, and why not."""

from hexane.report.preflight import preflight
from hexane.report.report import Entry, Report

__all__ = ["Entry", "Report", "preflight"]
