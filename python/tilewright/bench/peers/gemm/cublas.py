"""PyTorch's product of the dequantised weight, in 16 bits: cuBLAS."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tilewright.bench.peers import Peer
from tilewright.bench.timing import Rotation


class Cublas(Peer):
    name = "cublas"
    version = f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}"

    def supports(self, case: Any) -> str | None:
        return None

    def prepare(self, case: Any, inputs: Any) -> Callable[[], Any]:
        out = inputs.new_output()
        return Rotation(
            [partial(torch.mm, inputs.a, weight.T, out=out) for (weight,) in inputs.wide_weights]
        )


def peers(device: str) -> list[Peer]:
    return [Cublas()] if device.startswith("cuda") else []
