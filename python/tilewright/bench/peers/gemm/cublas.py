"""PyTorch's GEMM with the dequantised weight, in 16 bits: cuBLAS."""

from collections.abc import Callable
from typing import Any

import torch

from tilewright.bench.peers import Peer


class Cublas(Peer):
    name = "cublas"
    version = f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}"

    def supports(self, case: Any) -> str | None:
        return "the order of its sums depends on M" if case.batch_invariant else None

    def prepare(self, case: Any, inputs: Any) -> Callable[[], Any]:
        out = inputs.new_output()

        def gemm(weight: Any) -> Callable[[Any], Any]:
            return lambda a: torch.mm(a, weight, out=out)

        return inputs.rotation([gemm(weight.T) for (weight,) in inputs.wide_weights])


def peers(device: str) -> list[Peer]:
    return [Cublas()] if device.startswith("cuda") else []
