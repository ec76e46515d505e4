"""Translates ONNX ops to ops of the catalogue, with a module for each theme. Importing this package fills
`ONNX_OPS`."""

from importlib import import_module
from pkgutil import iter_modules

from hexane.importers.onnx.registry import DOMAIN_OPS as DOMAIN_OPS
from hexane.importers.onnx.registry import ONNX_OPS as ONNX_OPS

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
