"""The options with which models are compiled for this CPU."""

from hexane.compression import Compression, as_compression
from hexane.errors import Error
from hexane.options import Options


def host_options(
    dtype: str, threads: int | None, compress: str | Compression | None = None, encodes: bool = True
) -> Options:
    """Returns the options of a model for this CPU; for the arguments see `load`. encodes: whether `load` encodes
    weights of this kind of model. Raises Error for another dtype, for bf16 with encoded weights, which no kernel
    multiplies in bf16, and for int8 with weights that are not in int8."""
    known = ("bf16", "int8") if encodes else ("bf16",)
    if dtype not in ("", "fp32", *known):
        need = ", ".join(map(repr, known))
        raise Error(f"[llm.load] dtype: got {dtype!r}, need {need} or 'fp32'")
    mode = "none" if compress is None else as_compression(compress).mode
    if dtype == "bf16" and mode != "none":
        raise Error("[llm.load] dtype: got 'bf16' with compress, need one of them: encoded weights multiply in fp32")
    if dtype == "int8" and mode != "int8":
        raise Error("[llm.load] dtype: got 'int8' without weights in int8, need compress='int8' (--compress int8) too")
    return Options(target="host", device="cpu", threads=threads, compress=compress, dtype=dtype)
