"""A GEMM's error against float64, all of it, from codes and scales that are decoded here once more,
by PyTorch on the tensors' device or by NumPy."""

import math
from typing import Any

from tilewright.bench.case import Errors
from tilewright.bench.tensors import as_bytes, constant_like, in_float64, library_of

DIGITS = {"fp16": 11, "bf16": 8}  # of a significand, the first one too
LEAST = {"fp16": 2.0**-14, "bf16": 2.0**-126}  # of normal numbers
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def expect(inputs: Any) -> Any:
    """(m, n)"""
    b = _dequantized(*inputs.weight, inputs.global_scale)
    if inputs.quantized_a is None:
        a = in_float64(inputs.a)
    else:
        a = _dequantized(*inputs.quantized_a, inputs.global_scale)
    return a @ b.T


def errors(expected: Any, output: Any) -> Errors:
    difference = abs(in_float64(output) - expected)
    norm = math.sqrt(float((expected**2).sum()))
    return Errors(math.sqrt(float((difference**2).sum())) / norm, float(difference.max()))


def rounding_error(expected: Any, dtype: str) -> float:
    """The relative Frobenius error of the values themselves, rounded to a dtype."""
    return errors(expected, _rounded(expected, dtype)).rel_fro


def _rounded(values: Any, dtype: str) -> Any:
    """To nearest, ties to even; in float64 still."""
    xp = library_of(values)
    _, exponents = xp.frexp(xp.clip(abs(values), LEAST[dtype], None))
    ulps = 2.0 ** (in_float64(exponents) - DIGITS[dtype])
    return xp.round(values / ulps) * ulps


def _dequantized(codes: Any, scales: Any, global_scale: Any) -> Any:
    values = _e2m1(as_bytes(codes))
    blocks = values.reshape(len(values), -1, 16) * _e4m3(as_bytes(scales))[:, :, None]
    return blocks.reshape(values.shape) / in_float64(global_scale)


def _e2m1(codes: Any) -> Any:
    """(rows, columns) of (rows, columns / 2) bytes, the even column in the low half."""
    table = constant_like(codes, [*E2M1, *(-magnitude for magnitude in E2M1)])
    halves = library_of(codes).stack([table[codes & 15], table[codes >> 4]], -1)
    return halves.reshape(len(codes), -1)


def _e4m3(scales: Any) -> Any:
    """Of scales, which have no sign; 127 is NaN."""
    subnormal = [mantissa * 2.0**-9 for mantissa in range(8)]
    normal = [(8 + byte % 8) * 2.0 ** (byte // 8 - 10) for byte in range(8, 127)]
    return constant_like(scales, [*subnormal, *normal, math.nan])[scales]
