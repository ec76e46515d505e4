"""Safe forms of what leaves fp16: a pass, and a file for each kind of form."""

from hexane.passes.repair.repair import repair, repairs_of, without_repair

__all__ = ["repair", "repairs_of", "without_repair"]
