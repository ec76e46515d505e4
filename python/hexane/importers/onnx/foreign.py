"""Advice for nodes of an unknown domain."""

NCHWC, NHWC, MICROSOFT = "com.microsoft.nchwc", "com.ms.internal.nhwc", "com.microsoft"


def unknown(domain: str, op: str) -> str:
    """Returns the error text for an unsupported op of another domain."""
    if domain in (NCHWC, NHWC):
        return (
            f"got {op} of {domain!r}, which orders tensors for one machine's kernels; save the file with"
            " graph_optimization_level = ORT_ENABLE_EXTENDED or lower, or give the model before it was optimised"
        )
    if domain == MICROSOFT:
        return (
            f"got onnxruntime's op {op}, need standard ONNX ops or one of docs/onnxruntime.md; export the model again"
            " without onnxruntime's optimiser (or with this fusion off), or give the original in fp32"
        )
    return (
        f"got an op of the domain {domain!r}, need standard ONNX ops; export the model again with ops of ONNX, or with"
        " a function of this name in the file"
    )
