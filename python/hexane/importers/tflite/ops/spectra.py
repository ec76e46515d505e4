"""Fourier transforms of real signals.

A complex tensor of the file becomes a value with a last axis of 2, for real and imaginary parts.
"""

from hexane.dtypes import FP32
from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.tflite.registry import Context, reads


@reads("RFFT2D")
def rfft_2d(c: Context) -> Value:
    """Transforms x (..., h, w), cropped or zero-padded to fft_length, which is a power of two on each axis."""
    x, b, lengths = c.x(), c.b, c.ints(1)
    if x.dtype is not FP32 or len(x.shape) < 2 or len(lengths) != 2:
        raise Error(f"got x {x.type} and the lengths {list(lengths)}, need fp32 of rank 2 or more and two lengths")
    if any(n < 1 or n & (n - 1) for n in lengths):
        raise Error(f"got the lengths {list(lengths)}, need powers of two")
    spectrum = b.dft(b.reshape(x, shape=(*x.shape, 1)), axis=-2, length=lengths[1], onesided=True)
    if lengths == (1, lengths[1]) and x.shape[-2] == 1:
        return spectrum
    return b.dft(spectrum, axis=-3, length=lengths[0])


@reads("REAL", "IMAG")
def part(c: Context) -> Value:
    return real_and_imaginary(c)[c.op.name == "IMAG"]


@reads("COMPLEX_ABS")
def complex_abs(c: Context) -> Value:
    b = c.b
    real, imaginary = real_and_imaginary(c)
    return b.sqrt(b.add(b.mul(real, real), b.mul(imaginary, imaginary)))


def real_and_imaginary(c: Context) -> list[Value]:
    """Returns the two parts of a complex operand."""
    x, b = c.pairs(), c.b
    shape = x.shape[:-1]
    begins = ([*[0] * len(shape), i] for i in range(2))
    return [b.reshape(b.slice_by_index(x, begin=begin, end=(*shape, begin[-1] + 1)), shape=shape) for begin in begins]
