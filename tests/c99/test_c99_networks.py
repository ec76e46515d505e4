"""Whole networks in the C99 runtime, as they are and streamed, beside the host."""

import sys
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from hexane.runtime.c99 import C99Model
from qdq import quantized_network

ROWS = (0, 1, 4)


def plan_of(net: hx.Model, folder: Path) -> bytes:
    net.save(folder / "plan.hxp")
    return (folder / "plan.hxp").read_bytes()
