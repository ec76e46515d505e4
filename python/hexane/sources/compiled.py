"""Compiled programs: plans of Hexane (.hxp), and programs of Apple's compilers (.hwx, .e5)."""

from hexane.containers.hwx import MAGIC as HWX_MAGIC
from hexane.sources.format import Format
from hexane.sources.look import Seen

PLAN_MAGIC = b"HEXANE\x1a\n"
PLANS_MAGIC = b"HEXANES\n"  # first bytes of a file with several plans


def _is_hwx(seen: Seen) -> bool:
    return seen.is_data and (seen.suffix == ".hwx" or seen.begins(HWX_MAGIC.to_bytes(4, "little")))


PLAN = Format(
    "plan",
    "a plan",
    lambda seen: seen.is_data and (seen.suffix == ".hxp" or seen.begins(PLAN_MAGIC)),
    None,
    "hx.load and `hexane run` take the plan itself",
)
PLANS = Format(
    "plans",
    "a file of several plans",
    lambda seen: seen.is_data and seen.begins(PLANS_MAGIC),
    None,
    "hx.load_functions, hx.load and `hexane run` take the file itself",
)
HWX = Format("hwx", "a program of Apple's compiler (.hwx)", _is_hwx, None, "`hexane info` shows its parts")
E5 = Format(
    "e5",
    "a program of Apple's compiler (.e5)",
    lambda seen: seen.is_data and seen.suffix == ".e5",
    None,
    "`hexane info` shows its parts",
)
