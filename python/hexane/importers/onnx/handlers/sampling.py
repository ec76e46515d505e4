"""Ops that sample tensors at fractional positions: GridSample, AffineGrid, RoiAlign, DeformConv."""

from hexane.errors import Error
from hexane.importers.onnx.node import Builder, OnnxNode, Result
from hexane.importers.onnx.registry import onnx_op


@onnx_op("GridSample")
def grid_sample(b: Builder, n: OnnxNode) -> Result:
    """Samples x at grid positions. Before opset 20 the modes were called bilinear and bicubic."""
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(n.attrs["mode"], n.attrs["mode"])
    options = {"padding_mode": n.attrs["padding_mode"], "align_corners": n.attrs["align_corners"]}
    return b.grid_sample(n.value(0), n.value(1), mode=mode, **options)


@onnx_op("AffineGrid", shape_inputs=(1,))
def affine_grid(b: Builder, n: OnnxNode) -> Result:
    return b.affine_grid(n.value(0), size=n.ints(1), align_corners=n.attrs["align_corners"])


@onnx_op("RoiAlign")
def roi_align(b: Builder, n: OnnxNode) -> Result:
    names = ("mode", "output_height", "output_width", "sampling_ratio", "spatial_scale")
    half = n.attrs.get("coordinate_transformation_mode", "output_half_pixel")
    options = {name: n.attrs[name] for name in names}
    return b.roi_align(n.value(0), n.value(1), n.value(2), coordinate_transformation_mode=half, **options)


@onnx_op("DeformConv")
def deform_conv(b: Builder, n: OnnxNode) -> Result:
    kernel = n.value(1).shape[2:]
    if n.attrs.get("kernel_shape", kernel) != kernel:
        raise Error(f"kernel_shape: got {n.attrs['kernel_shape']}, need {kernel}")
    strides, dilations = n.attrs.get("strides") or (1, 1), n.attrs.get("dilations") or (1, 1)
    pads = n.attrs.get("pads") or (0, 0, 0, 0)
    if not len(strides) == len(dilations) == len(pads) // 2 == 2:
        raise Error(f"got strides {strides}, dilations {dilations} and pads {pads}, need those of two axes")
    return b.deform_conv(
        *(n.optional(i) for i in range(5)),
        strides=strides,
        dilations=dilations,
        pad=(pads[0], pads[2], pads[1], pads[3]),
        groups=n.attrs["group"],
        offset_groups=n.attrs["offset_group"],
    )
