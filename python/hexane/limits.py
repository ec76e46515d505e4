"""How large things may get: each limit once. Those that C++ checks too are of csrc/core/limits.h."""

from hexane._core import MAX_BYTES as MAX_BYTES
from hexane._core import MAX_LIST as MAX_LIST
from hexane._core import MAX_RANK as MAX_RANK
from hexane._core import MAX_SLOT_NUMBERS as MAX_SLOT_NUMBERS
from hexane._core import MAX_SLOTS as MAX_SLOTS

MAX_GROWTH_BYTES = 64 << 20  # what constants that a model's few numbers ask for may take
MAX_WINDOW_BYTES = 256 << 20  # what pooling of constants reads: a file may ask for any kernel size
