"""The peers, each as a call on fixed buffers: onnxruntime, and OpenVINO in fp32."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Call = Callable[[], object]
Feeds = Mapping[str, np.ndarray[Any, Any]]


def onnxruntime_session(path: Path | bytes, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    model = path if isinstance(path, bytes) else str(path)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def onnxruntime_call(path: Path | bytes, feeds: Feeds, threads: int) -> tuple[Call, list[Any]]:
    """Returns `session.run` as a call, and the outputs of one run."""
    session = onnxruntime_session(path, threads)
    return lambda: session.run(None, feeds), session.run(None, feeds)


def onnxruntime_bound_call(path: Path | bytes, feeds: Feeds) -> Call:
    """Returns `run_with_iobinding` on fixed buffers as a call."""
    session = onnxruntime_session(path, 1)
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    for output in session.get_outputs():
        binding.bind_output(output.name, "cpu")
    return lambda: session.run_with_iobinding(binding)


def openvino_call(path: Path, feeds: Feeds, threads: int) -> tuple[Call, list[Any]]:
    """Returns a prebound `infer` in fp32 as a call, and the outputs of one run."""
    import openvino

    core = openvino.Core()
    config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": str(threads), "NUM_STREAMS": "1"}
    compiled = core.compile_model(core.read_model(str(path)), "CPU", config)
    request = compiled.create_infer_request()
    for name, array in feeds.items():
        request.set_tensor(name, openvino.Tensor(array, shared_memory=True))
    request.infer()
    return request.infer, [request.get_tensor(o).data.copy() for o in compiled.outputs]
