"""The checks of the engine's compiler, written as data and small predicates: for a layer, a network, and a compiled
program."""

from hexane.validate.constants import is_constant
from hexane.validate.layer import validate
from hexane.validate.loaded import Matrix, validate_program
from hexane.validate.network import Unit, validate_module, validate_network, validate_weight_edit
from hexane.validate.node import judge, judge_all

__all__ = [
    "Matrix",
    "Unit",
    "is_constant",
    "judge",
    "judge_all",
    "validate",
    "validate_module",
    "validate_network",
    "validate_program",
    "validate_weight_edit",
]
