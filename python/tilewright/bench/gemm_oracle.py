"""A GEMM's error against float64, on some rows and columns, from codes and scales that are decoded
here once more."""

import math
from dataclasses import dataclass
from typing import Any

from tilewright.bench.tensors import to_bytes, to_float64

ROWS = 64
COLUMNS = 256
DIGITS = {"fp16": 11, "bf16": 8}  # of a significand, the first one too
LEAST = {"fp16": 2.0**-14, "bf16": 2.0**-126}  # of normal numbers
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True)
class Expected:
    """A part of the product."""

    rows: list[int]
    columns: list[int]
    values: Any  # (rows, columns)


def expect(inputs: Any) -> Expected:
    rows, columns = _spread(inputs.case.m, ROWS), _spread(inputs.case.n, COLUMNS)
    b = _dequantized(*inputs.weight, columns, inputs.global_scale)
    if inputs.quantized_a is None:
        a = to_float64(inputs.a[rows])
    else:
        a = _dequantized(*inputs.quantized_a, rows, inputs.global_scale)
    return Expected(rows, columns, a @ b.T)


def errors(expected: Expected, output: Any) -> tuple[float, float]:
    """(relative Frobenius error, largest absolute error)"""
    return _errors(expected.values, to_float64(output[expected.rows][:, expected.columns]))


def rounding_error(expected: Expected, dtype: str) -> float:
    """The relative Frobenius error of the values themselves, rounded to a dtype."""
    return _errors(expected.values, _rounded(expected.values, dtype))[0]


def _errors(expected: Any, found: Any) -> tuple[float, float]:
    difference = abs(found - expected)
    norm = math.sqrt(float((expected**2).sum()))
    return math.sqrt(float((difference**2).sum())) / norm, float(difference.max())


def _rounded(values: Any, dtype: str) -> Any:
    """To nearest, ties to even; in float64 still."""
    import numpy

    _, exponents = numpy.frexp(numpy.maximum(abs(values), LEAST[dtype]))
    ulps = numpy.ldexp(1.0, exponents - DIGITS[dtype])
    return numpy.rint(values / ulps) * ulps


def _spread(size: int, count: int) -> list[int]:
    """Indices from the first to the last."""
    import numpy

    return numpy.unique(numpy.linspace(0, size - 1, min(count, size)).astype(int)).tolist()


def _dequantized(codes: Any, scales: Any, rows: list[int], global_scale: Any) -> Any:
    """Those rows, in float64."""
    values = _e2m1(to_bytes(codes[rows]))
    scales_of_values = _e4m3(to_bytes(scales)[rows]).repeat(16, axis=1)
    return values * scales_of_values / to_float64(global_scale)


def _e2m1(codes: Any) -> Any:
    """(rows, columns) of (rows, columns / 2) bytes, the even column in the low half."""
    import numpy

    table = numpy.array([*E2M1, *(-magnitude for magnitude in E2M1)])
    return table[numpy.stack([codes & 15, codes >> 4], axis=-1)].reshape(len(codes), -1)


def _e4m3(scales: Any) -> Any:
    """Of scales, which have no sign; 127 is NaN."""
    import numpy

    every = numpy.arange(128)
    exponent, mantissa = every >> 3, every & 7
    normal = (8 + mantissa) * 2.0 ** (exponent - 10)
    table = numpy.where(exponent == 0, mantissa * 2.0**-9, normal)
    table[127] = numpy.nan
    return table[scales]
