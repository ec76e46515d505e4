"""The dtypes that the engine computes with: fp16, and integers only as indices and encodings."""

from collections.abc import Iterator

from hexane.graph import TensorType
from hexane.targets import Chip, Verdict
from hexane.validate.extents import GATHERS
from hexane.validate.rule import judged, refused

# Ops that read or write integers besides their data: indices, conditions, encodings, and the state of a random stream.
INDEXED = GATHERS | {"topk", "argsort", "reduce_argmax", "reduce_argmin", "quantize", "dequantize", "quantized_matmul"}
INDEXED |= {"quantized_conv", "quantized_add", "write_state"}
INDEXED |= {"random", "random_uniform", "random_normal", "bernoulli", "dropout", "multinomial"}
# A training step computes a few single numbers in fp64, such as sums of squares. In fp16 such sums would be infinite.
WIDE_NUMBER = judged(
    "host", "single numbers of fp64 stay on the host, where they keep their digits and their range", "numbers of fp64"
)


def integers(op: str, live: list[TensorType], outputs: tuple[TensorType, ...], chip: Chip) -> Iterator[Verdict]:
    """Verdicts on integers: the engine computes in fp16, so integers may be indices or encodings, but not numbers."""
    if op in INDEXED:
        return
    advice = "keep numbers that are not indices as floats, which are exact to 2048"
    whole = next((t for t in (*live, *outputs) if t.dtype.kind not in ("float", "bool")), None)
    if whole is None:
        return
    if op == "cast" and outputs[0] is whole and chip.gates.gather_check:
        yield refused(f"a cast to {whole.dtype}", "cast to an integer", "guide app. A", advice)
        return
    reason = f"the engine computes in fp16, not in {whole.dtype}"
    yield judged("host", reason, "dtypes of the datapath", "guide ch4", "measured", advice)
