"""A GEMM's random inputs, in the forms that its implementations take, and what it should give."""

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import tilewright
from tilewright.bench import gemm_oracle
from tilewright.bench.tensors import LIBRARY_DTYPES, constant, copy_of, filled, normal
from tilewright.bench.timing import Rotation, copies_to_rotate

# A power of two, so that dequantised values are exact in 16 bits. There is room for 10.5 times the
# standard deviation.
GLOBAL_SCALE = 256.0
KIND = "encode"  # of global scales, all of them
EPSILON = 1e-6  # of the RMSNorm


class GemmInputs:
    """Lists of weights are copies to be rotated; all forms hold the same values."""

    def __init__(self, case: Any, seed: int):
        self.case = case
        self.global_scale = constant([GLOBAL_SCALE], "fp32", case.device)
        shapes = [(case.m, case.k), (case.n, case.k)]
        activations, weight = normal(shapes, case.dtype, case.device, seed)
        self.weight = self._quantize(weight)  # codes, scales
        self.quantized_a = self._quantize(activations) if case.w4a4 else None
        self.unnormed_a = activations
        self.a = self._widen(*self.quantized_a) if case.w4a4 else activations  # (m, k), 16 bits
        if case.rmsnorm:
            self.a = self._rms_norm()

    def _quantize(self, matrix: Any) -> tuple[Any, Any]:
        codes, scales, _ = tilewright.quantize_nvfp4(
            matrix, self.global_scale, global_scale_kind=KIND
        )
        return codes, scales

    def _widen(self, codes: Any, scales: Any) -> Any:
        dtype = LIBRARY_DTYPES[self.case.dtype]
        return tilewright.dequantize_nvfp4(
            codes, scales, self.global_scale, global_scale_kind=KIND, dtype=dtype
        )

    def _rms_norm(self) -> Any:
        """PyTorch's kernel, which does not let the launch after it start early."""
        import torch

        return torch.nn.functional.rms_norm(self.unnormed_a, (self.case.k,), self.gamma, EPSILON)

    @cached_property
    def gamma(self) -> Any:
        return filled((self.case.k,), 1.0, self.case.dtype, self.case.device)

    def rotation(self, gemms: list[Callable[[Any], Any]], a: Any = None) -> Rotation:
        """Calls of these with `a`, or with the activations in 16 bits, which an RMSNorm may give
        that is launched before each."""
        given = self.a if a is None else a

        def call(gemm: Callable[[Any], Any]) -> Any:
            return gemm(self._rms_norm() if self.case.rmsnorm else given)

        return Rotation([partial(call, gemm) for gemm in gemms])

    def copies(self, *tensors: Any) -> list[tuple[Any, ...]]:
        size_bytes = sum(int(tensor.nbytes) for tensor in tensors)
        count = copies_to_rotate(size_bytes, self.case.between_bytes)
        return [tensors] + [tuple(map(copy_of, tensors)) for _ in range(count - 1)]

    @cached_property
    def coded_weights(self) -> list[tuple[Any, Any]]:
        """(codes, scales)"""
        return self.copies(*self.weight)

    @cached_property
    def packed_weights(self) -> list[tuple[Any]]:
        return self.copies(tilewright.prepack_nvfp4_weight(*self.weight))

    @cached_property
    def wide_weights(self) -> list[tuple[Any]]:
        """(n, k), 16 bits"""
        return self.copies(self._widen(*self.weight))

    def new_output(self) -> Any:
        """NaN wherever nothing is written."""
        case = self.case
        return filled((case.m, case.n), float("nan"), case.dtype, case.device)

    @cached_property
    def expected(self) -> Any:
        """(m, n), in float64"""
        return gemm_oracle.expect(self)
