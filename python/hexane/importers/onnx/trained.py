"""Chooses the initializers of a model that become params."""

from collections.abc import Collection, Mapping

from hexane.errors import Error
from hexane.importers.onnx.load import ModelFile
from hexane.importers.onnx.order import reads
from hexane.importers.onnx.shape_inputs import find_shape_inputs
from hexane.importers.onnx.tensors import check_text, element_type
from hexane.importers.patterns import matching


def params_of(
    file: ModelFile, pattern: str, fixed: Collection[str] = (), tied: Mapping[str, str] | None = None
) -> frozenset[str]:
    """Returns the names of matching initializers. Only float tensors with axes match, if nodes read them and they
    decide no shape.

    fixed: names that stay constants, except for means and variances of batch norms. tied: further names, each with the
    initializer's name in the file. Raises Error for a pattern that matches no initializer.
    """
    statistics = {name for node in file.nodes if node.op_type == "BatchNormalization" for name in node.input[3:5]}
    fixed = set(fixed) - statistics
    read = {name for node in file.nodes for name in reads(node)}
    floats = [
        check_text(tensor.name)
        for tensor, _ in file.initializers()
        if tensor.name in read and tensor.name not in fixed and tensor.dims and _is_float(tensor.data_type)
    ]
    decide = find_shape_inputs(file.nodes, file.proto.functions, floats)
    names = [name for name in floats if name not in decide]
    others = {other: name for other, name in (tied or {}).items() if name in names}
    return frozenset(others.get(name, name) for name in matching("import", pattern, [*names, *others]))


def _is_float(code: int) -> bool:
    try:
        return element_type(code).kind == "float"
    except Error:
        return False  # reading the initializer reports the error
