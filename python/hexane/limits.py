"""How large things may get: each limit once. What the C++ side limits too is named beside it."""

MAX_RANK = 8  # PLAN_MAX_RANK
MAX_BYTES = 1 << 46  # of a tensor and of a memory space: an overflowing product of dims is refused where it arises
MAX_LIST = 8  # integers of one attribute: IntList
MAX_SLOTS = 4  # of an epilogue: Epilogue
MAX_SLOT_NUMBERS = 2  # attributes of the op in a slot: EpilogueSlot
MAX_GROWTH_BYTES = 64 << 20  # what constants that a model's few numbers ask for may take
MAX_WINDOW_BYTES = 256 << 20  # what pooling of constants reads: a file may ask for any kernel size
