"""This library's kernels, each an entrant of its own: those of NVFP4 weights, the rows of nvfp4's
table of shapes, and the BF16 steps that lead there, which are given the dequantised weight."""

from collections.abc import Callable
from functools import partial
from typing import Any

import tilewright
from tilewright import _native
from tilewright._kernels import gemm_problem_of, nvfp4_rows
from tilewright.bench.peers import Peer
from tilewright.bench.timing import Rotation


class TilewrightGemm(Peer):
    version = tilewright.__commit__

    def __init__(self, kernel: tilewright.Kernel, in_all: bool = True):
        self.kernel = kernel
        self.name = f"tilewright/{kernel.name}"
        self.in_all = in_all
        self.takes_packed = "packed" in kernel.weight_forms

    def supports(self, case: Any) -> str | None:
        problem = gemm_problem_of(case.to_json(), b_is_packed=self.takes_packed)
        index = int(case.device.partition(":")[2] or 0)
        return _native.gemm_why_not(
            self.kernel.operation, self.kernel.name, problem, device_index=index
        )

    def prepare(self, case: Any, inputs: Any) -> Callable[[], Any]:
        if self.kernel.operation == "gemm_bf16":
            multiply, a, weights = tilewright.gemm_bf16, inputs.a, inputs.wide_weights
            options = {}
        else:
            multiply = tilewright.gemm_nvfp4
            a, options = _activations(inputs)
            weights = inputs.packed_weights if self.takes_packed else inputs.coded_weights
            options |= {"global_scale_b": inputs.global_scale}
            options |= {"b_is_constant": True, "batch_invariant": case.batch_invariant}
        options |= {"out": inputs.new_output(), "kernel": self.kernel.name}
        return Rotation([partial(multiply, a, *weight, **options) for weight in weights])


def _activations(inputs: Any) -> tuple[Any, dict[str, Any]]:
    """a, and what belongs to it."""
    if inputs.quantized_a is None:
        return inputs.a, {}
    codes, scales = inputs.quantized_a
    return codes, {"sfa": scales, "global_scale_a": inputs.global_scale}


def peers(device: str) -> list[Peer]:
    kind = device.partition(":")[0]
    kernels = [row for row in tilewright.kernels() if row.device == kind]
    steps = [TilewrightGemm(row, False) for row in kernels if row.operation == "gemm_bf16"]
    products = [TilewrightGemm(row) for row in kernels if row.operation == "gemm_nvfp4"]
    rows = [TilewrightGemm(row, False) for row in nvfp4_rows() if row.device == kind]
    return steps + products + rows
