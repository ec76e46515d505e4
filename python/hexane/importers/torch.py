"""PyTorch models into graphs, through torch's own ONNX export."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hexane.errors import Error
from hexane.graph import Graph


def from_torch(model: Any, example_inputs: Any = None) -> Graph:
    """The graph of a torch.nn.Module in evaluation mode, or of a torch.export.ExportedProgram as it is.

    example_inputs: what the module is called with, a tensor or a tuple; their shapes become the graph's. An ExportedProgram
    has its own. Inputs are named after the parameters of `forward`, outputs after the operations they come from.
    Raises Error where torch or onnxscript is missing, for what torch cannot export or Hexane cannot import, and for dynamic
    shapes.
    """
    # Loaded where it is used: torch is optional, and onnx takes longer to import than all of hexane.
    try:
        import onnxscript  # noqa: F401 - the exporter needs it
        import torch
    except ImportError as error:
        raise Error(f"[from_torch] got no {error.name}, need the extra 'torch': pip install 'hexane[torch]'") from None
    from hexane.importers.onnx import SpecialisationNeeded, import_onnx

    if isinstance(model, torch.export.ExportedProgram):
        if example_inputs is not None:
            raise Error("[from_torch] got example_inputs and an ExportedProgram, which has its own: need one of them")
        arguments: tuple[Any, ...] = ()
    elif isinstance(model, torch.nn.Module):
        if example_inputs is None:
            raise Error(
                f"[from_torch] {type(model).__name__}: got no example_inputs, need what the module is called with"
            )
        arguments = tuple(example_inputs) if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
        if arguments and isinstance(arguments[-1], dict):
            arguments += ({},)  # torch takes a dict that comes last for keyword arguments
    else:
        raise Error(
            f"[from_torch] got {type(model).__name__}, need a torch.nn.Module or a torch.export.ExportedProgram"
        )
    with _evaluation_mode(model):
        try:
            exported = torch.onnx.export(model, arguments, dynamo=True, verbose=False)
        except Exception as error:
            # torch wraps whatever its tracer or the model's own code raises in advice.
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            reason = f"{type(cause).__name__}: {str(cause).strip().partition(chr(10))[0]}"
            raise Error(f"[from_torch] {type(model).__name__}: torch.onnx could not export it: {reason}") from error
    assert exported is not None
    try:
        return import_onnx(exported.model_proto)
    except SpecialisationNeeded as error:
        names = ", ".join(map(repr, error.names))
        raise Error(
            f"[from_torch] got dynamic shapes of {names}, need static ones: export without dynamic_shapes"
        ) from None


@contextmanager
def _evaluation_mode(model: Any) -> Iterator[None]:
    """Batch norms use their running statistics, dropout nothing; afterwards each submodule is as it was."""
    modules = list(model.modules()) if hasattr(model, "modules") else []
    before = [module.training for module in modules]
    for module in modules:
        module.training = False
    try:
        yield
    finally:
        for module, training in zip(modules, before, strict=True):
            module.training = training
