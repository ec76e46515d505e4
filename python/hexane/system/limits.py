"""The limits on sizes. Limits that C++ checks too come from csrc/core/limits.h."""

from hexane._core import MAX_BYTES as MAX_BYTES
from hexane._core import MAX_KNOTS as MAX_KNOTS
from hexane._core import MAX_LIST as MAX_LIST
from hexane._core import MAX_RANK as MAX_RANK
from hexane._core import MAX_SLOT_NUMBERS as MAX_SLOT_NUMBERS
from hexane._core import MAX_SLOTS as MAX_SLOTS

MAX_GROWTH_BYTES = 64 << 20  # The largest constant that a few numbers in a model may describe.
MAX_WINDOW_BYTES = 256 << 20  # Most bytes that pooling of a constant may read: a file may have any kernel size.
