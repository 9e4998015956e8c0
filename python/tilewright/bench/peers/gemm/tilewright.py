"""This library's kernels, each an entrant of its own: those of NVFP4 weights, nvfp4's
variants, and the BF16 steps that lead there, which are given the dequantised weight."""

import argparse
from collections.abc import Callable
from typing import Any

import tilewright
from tilewright import _native
from tilewright._kernels import gemm_bf16_problem_of, gemm_nvfp4_problem_of
from tilewright.bench.gemm_inputs import KIND
from tilewright.bench.peers import Peer


class TilewrightGemm(Peer):
    version = tilewright.__commit__
    b_is_constant = True

    def __init__(self, kernel: tilewright.Kernel, in_all: bool = True):
        self.kernel = kernel
        self.name = f"tilewright/{kernel.name}"
        self.in_all = in_all
        self.takes_packed = "packed" in kernel.limits.get("b", "").split(", ")

    def supports(self, case: Any) -> str | None:
        fields = case.to_json()
        index = int(case.device.partition(":")[2] or 0)
        if self.kernel.operation == "gemm_nvfp4":
            problem = gemm_nvfp4_problem_of(fields, b_is_packed=self.takes_packed)
        elif fields["a_dtype"] != "bf16":
            return "takes bf16 alone"
        else:
            problem = gemm_bf16_problem_of(fields)
        return _native.why_not(self.kernel.name, problem, device_index=index)

    def configure(self, args: argparse.Namespace) -> bool:
        self.b_is_constant = args.constant_weights
        return True

    def setup(self, case: Any) -> dict[str, Any] | None:
        return None if self.b_is_constant else {"b_is_constant": False}

    def prepare(self, case: Any, inputs: Any) -> Callable[[], Any]:
        options = {"out": inputs.new_output(), "kernel": self.kernel.name}
        if self.kernel.operation == "gemm_bf16":
            return inputs.rotation(_gemms(tilewright.gemm_bf16, inputs.wide_weights, options))
        weights = inputs.packed_weights if self.takes_packed else inputs.coded_weights
        options |= {"global_scale_b": inputs.global_scale, "global_scale_b_kind": KIND}
        options |= {"b_is_constant": self.b_is_constant, "batch_invariant": case.batch_invariant}
        codes, scales = inputs.quantized_a or (None, None)
        if case.w4a4:
            options |= {"sfa": scales}
            options |= {"global_scale_a": inputs.global_scale, "global_scale_a_kind": KIND}
        return inputs.rotation(_gemms(tilewright.gemm_nvfp4, weights, options), codes)


def _gemms(
    multiply: Callable[..., Any], weights: list[tuple[Any, ...]], options: dict[str, Any]
) -> list[Callable[[Any], Any]]:
    """One for each copy of the weight, of the activations that they are given."""
    return [lambda a, weight=weight: multiply(a, *weight, **options) for weight in weights]


def peers(device: str) -> list[Peer]:
    kind = device.partition(":")[0]
    kernels = [row for row in tilewright.kernels() if row.device == kind]
    steps = [TilewrightGemm(row, False) for row in kernels if row.operation == "gemm_bf16"]
    gemms = [TilewrightGemm(row) for row in kernels if row.operation == "gemm_nvfp4"]
    variants = [variant for row in kernels for variant in row.variants]
    return (
        steps
        + gemms
        + [TilewrightGemm(row, False) for row in variants if row.operation == "gemm_nvfp4"]
    )
