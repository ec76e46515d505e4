"""Reads a training run from its folder: the log, the figures computed from it, and a loss curve for a terminal."""

from hexane.train.dashboard.braille import Curve, drawn_curve
from hexane.train.dashboard.run import Evaluation, Measurements, Plan, Run, Sample, read_plan, run_of
from hexane.train.dashboard.run_log import RunLog
from hexane.train.dashboard.thin import Bucket, thinned

__all__ = [
    "Bucket",
    "Curve",
    "Evaluation",
    "Measurements",
    "Plan",
    "Run",
    "RunLog",
    "Sample",
    "drawn_curve",
    "read_plan",
    "run_of",
    "thinned",
]
