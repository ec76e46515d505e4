"""Opens models. `table.py` has the table of formats, with a file for each; `foreign.py` has the kinds that Hexane knows
but does not read."""

from hexane.sources.compiled import PLANS_MAGIC
from hexane.sources.module import Function, Module
from hexane.sources.table import FORMATS, form_of, open, open_network, open_onnx, title_of

__all__ = ["FORMATS", "PLANS_MAGIC", "Function", "Module", "form_of", "open", "open_network", "open_onnx", "title_of"]
