"""Replaces ops that overflow or underflow fp16 by safe forms: the pass `repair`, and one file per kind of form."""

from hexane.passes.repair.repair import repair, repairs_of, without_repair

__all__ = ["repair", "repairs_of", "without_repair"]
