"""Reports about a network: which chips run it, why others do not, how its numbers differ between chips, and the result
of compiling it."""

from hexane.report.compare import Comparison, compare
from hexane.report.cross_compile import cross_compile_check
from hexane.report.divergence import DivergenceReport, predict_fp16_divergence
from hexane.report.estimate import estimate
from hexane.report.explain import Explanation, explain
from hexane.report.explanation_page import explanation_page
from hexane.report.fit import Fit, fit
from hexane.report.page import html_page
from hexane.report.preflight import preflight
from hexane.report.profile import Profile, profile
from hexane.report.report import Entry, Report, Weights
from hexane.report.task_descriptors import Descriptors, descriptors, write_hwx

__all__ = [
    "Comparison",
    "Descriptors",
    "DivergenceReport",
    "Entry",
    "Explanation",
    "Fit",
    "Profile",
    "Report",
    "Weights",
    "compare",
    "cross_compile_check",
    "descriptors",
    "estimate",
    "explain",
    "explanation_page",
    "fit",
    "html_page",
    "predict_fp16_divergence",
    "preflight",
    "profile",
    "write_hwx",
]
