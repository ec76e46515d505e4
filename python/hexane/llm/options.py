"""The options with which models are compiled for this CPU."""

from hexane.compression import Compression
from hexane.errors import Error
from hexane.options import Options


def host_options(dtype: str, threads: int | None, compress: str | Compression | None = None) -> Options:
    """Returns the options of a model for this CPU; for the arguments see `load`. Raises Error for another dtype,
    and for bf16 with encoded weights: their kernels multiply in fp32."""
    if dtype not in ("", "fp32", "bf16"):
        raise Error(f"[llm.load] dtype: got {dtype!r}, need 'bf16' or 'fp32'")
    if dtype == "bf16" and compress not in (None, "none", Compression("none")):
        raise Error("[llm.load] dtype: got 'bf16' with compress, need one of them: encoded weights multiply in fp32")
    return Options(target="host", device="cpu", threads=threads, compress=compress, dtype=dtype)
