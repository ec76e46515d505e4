"""Imports PyTorch models through PyTorch's ONNX export."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.graph import Array, Graph, Value, constant, tensor_type, unique
from hexane.ops import OPS, apply

TORCH = "hexane.torch"  # the ONNX domain of ops that `_name_hardtanh` writes.
INSIDE = "model."  # Prefix of the names in a wrapped module.


def from_torch(model: Any, example_inputs: Any = None, *, params: str | None = None) -> Graph:
    """Returns the graph of a torch.nn.Module in evaluation mode, or of a torch.export.ExportedProgram.

    example_inputs: arguments of the module, a tensor or a tuple, whose shapes become the graph's input shapes. An
    ExportedProgram contains its own inputs. Inputs are named after the parameters of `forward`, outputs after the
    operations that compute them. Buffers that `forward` changes become states with the buffers' names; scalars have
    shape (1,). Inputs are never written. params: patterns of names ("layer4.*|fc.*") of the weights that can be
    replaced and trained, see `hx.train.with_params`. Unchanged buffers are constants, except for the statistics of
    batch norms. A tied weight is one param, with its name in `model.named_parameters()`. Patterns may match other names
    of a tied weight.

    Raises Error if torch or onnxscript is missing, if torch cannot export or Hexane cannot import the model, and for
    dynamic shapes.
    """
    # Imported late: torch is optional, and the import of onnx takes longer than that of all of hexane.
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
            arguments += ({},)  # torch reads a final dict as keyword arguments
    else:
        raise Error(
            f"[from_torch] got {type(model).__name__}, need a torch.nn.Module or a torch.export.ExportedProgram"
        )
    with _evaluation_mode(model):
        try:
            exported, buffers = _export(model, arguments, optimized=params is None)
            inside = INSIDE if buffers else ""
            tied = {f"{inside}{other}": f"{inside}{name}" for other, name in tied_names(model).items()}
            if params is not None:
                _name_hardtanh(exported.model.graph)
                _rename_tied(exported.model.graph.initializers, tied)
        except Error:
            raise
        except Exception as error:
            # torch wraps the errors of its tracer, and of the model's own code, in errors with advice.
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            reason = f"{type(cause).__name__}: {str(cause).strip().partition(chr(10))[0]}"
            raise Error(f"[from_torch] {type(model).__name__}: torch.onnx could not export it: {reason}") from error
    try:
        if buffers and params is not None:
            params = "|".join(f"{INSIDE}{one}" for one in params.split("|"))
        every = {"remove_duplicate": False} if isinstance(model, torch.nn.Module) else {}
        fixed = [
            f"{inside}{name}" for name, _ in model.named_buffers(**every)
        ]  # tables of angles and masks, which are not trained
        return _with_states(import_onnx(exported.model_proto, params=params, fixed=fixed, tied=tied), buffers)
    except SpecialisationNeeded as error:
        names = ", ".join(map(repr, error.names))
        raise Error(
            f"[from_torch] got dynamic shapes of {names}, need static ones: export without dynamic_shapes"
        ) from None


def tied_names(model: Any) -> dict[str, str]:
    """Returns the additional names of tied parameters in the state_dict, each with the name that `named_parameters()`
    has. model: a torch.nn.Module or a torch.export.ExportedProgram."""
    import torch

    if isinstance(model, torch.nn.Module):
        named = list(model.named_parameters(remove_duplicate=False))
    else:
        named = [(name, tensor) for name, tensor in model.state_dict.items() if isinstance(tensor, torch.nn.Parameter)]
    first: dict[int, str] = {}
    return {name: first[id(p)] for name, p in named if first.setdefault(id(p), name) != name}


def _rename_tied(initializers: Any, tied: Mapping[str, str]) -> None:
    """Renames initializers of tied weights to the parameters' first names, because torch exports them by their last
    names."""
    for other, name in tied.items():
        if name not in initializers and other in initializers:
            value = initializers.pop(other)
            value.name = name
            initializers.add(value)


def _name_hardtanh(graph: Any) -> None:
    """Replaces each clip that torch exports for hardtanh or relu6 by the op `hardtanh`. At the bounds, the gradient of
    hardtanh is 0, but the gradient of clamp is 1."""
    for node in graph:
        if node.op_type == "Clip" and "aten.hardtanh" in node.metadata_props.get("pkg.torch.onnx.fx_node", ""):
            node.domain, node.op_type = TORCH, "hardtanh"
            graph.opset_imports.setdefault(TORCH, 1)


def _export(model: Any, arguments: tuple[Any, ...], optimized: bool) -> tuple[Any, dict[str, Array]]:
    """Returns the ONNX program, and the initial contents of the buffers that the program changes, by name. The program
    reads such a buffer from an input of the buffer's name, and returns its new contents as one of the last outputs.
    optimized: run the exporter's optimiser, which folds and renames weights and merges equal ones."""
    import torch

    exported = torch.onnx.export(model, arguments, dynamo=True, verbose=False, optimize=optimized)
    assert exported is not None
    program, graph = exported.exported_program, exported.model.graph
    assert program is not None
    if any("_native_batch_norm_legit_functional" in str(node.target) for node in program.graph.nodes):
        raise Error(
            "[from_torch] got a batch norm in training, which torch.onnx exports as inference: need model.eval()"
        )
    names = sorted(program.graph_signature.buffers_to_mutate.values())
    if not names:
        return exported, {}
    if isinstance(model, torch.export.ExportedProgram):
        (arguments, options), model = model.example_inputs, model.module()
        arguments = (*arguments, options)

    class Returning(torch.nn.Module):
        """Wraps the model and also returns the changed buffers, because torch does not export code on which no result
        depends."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.model(*args, **kwargs), *map(self.model.get_buffer, names)

    contents = {name: _array(name, model.get_buffer(name)) for name in names}
    ports = [[str(value.name) for value in values] for values in (graph.inputs, graph.outputs)]
    # The exporter's optimiser is off, because it treats buffers as constants.
    exported = torch.onnx.export(
        Returning(), arguments, dynamo=True, verbose=False, optimize=False,
        input_names=ports[0], output_names=[*ports[1], *(f"{name}.next" for name in names)],
    )  # fmt: skip
    assert exported is not None
    graph = exported.model.graph
    for name in names:
        buffer = graph.initializers.pop(f"{INSIDE}{name}", None)
        if buffer is not None:
            buffer.name, buffer.const_value = name, None
            graph.inputs.append(buffer)
    if optimized:
        exported.optimize()
    return exported, contents


def _array(name: str, buffer: Any) -> Array:
    try:
        return np.array(buffer.detach().cpu().numpy())
    except TypeError as error:  # NumPy lacks the dtype
        raise Error(f"[from_torch] buffer {name!r}, which forward changes: {error}") from None


def _with_states(graph: Graph, buffers: Mapping[str, Array]) -> Graph:
    """Returns the graph in which the inputs with the buffers' names are states. The last outputs become the updates of
    these states. The params' names lose the prefix of the wrapper."""
    if not buffers:
        return graph

    def _applied(op: str, *operands: Value, **attrs: Any) -> Value:
        return apply(OPS[op], list(operands), attrs, operands[0].node.sources)[0]

    states = {}
    for name, array in buffers.items():
        data = np.atleast_1d(array)
        states[name] = unique("state", name, tensor_type(data.dtype, data.shape), data, (name,))
    read = {
        value: _applied("reshape", states[name], shape=value.shape)
        for value in graph.inputs
        if (name := str(value.node.attrs["name"])) in states
    }
    for node in graph.nodes:
        if node.op == "param":
            name = str(node.attrs["name"]).removeprefix(INSIDE)
            read[node.values[0]] = unique("param", name, node.types[0], node.data, node.sources)
    graph = graph.rewrite(lambda node, inputs: None, became=read)
    start = constant(np.array(0))
    updates = [_applied("write_state", state, _applied("reshape", port.value, shape=state.shape), start)
               for state, port in zip(states.values(), graph.outputs[-len(states) :], strict=True)]  # fmt: skip
    return replace(
        graph,
        inputs=tuple(value for value in graph.inputs if value.node.op == "input"),
        outputs=graph.outputs[: -len(states)],
        updates=(*graph.updates, *updates),
    )


@contextmanager
def _evaluation_mode(model: Any) -> Iterator[None]:
    """Switches all submodules to evaluation mode, and restores their modes at the end."""
    modules = list(model.modules()) if hasattr(model, "modules") else []
    before = [module.training for module in modules]
    for module in modules:
        module.training = False
    try:
        yield
    finally:
        for module, training in zip(modules, before, strict=True):
            module.training = training
