"""Reports about a network: which chips run it, and why others do not."""

from hexane.report.cross_compile import cross_compile_check
from hexane.report.page import html_page
from hexane.report.preflight import preflight
from hexane.report.report import Entry, Report, Weights

__all__ = ["Entry", "Report", "Weights", "cross_compile_check", "html_page", "preflight"]
