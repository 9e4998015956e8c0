"""PyTorch's scaled_dot_product_attention, whichever backend it chooses, on the CPU and on CUDA."""

from collections.abc import Callable
from typing import Any

import torch

from tilewright.bench.peers import Peer


class TorchSdpa(Peer):
    name = "torch_sdpa"
    version = torch.__version__

    def supports(self, case: Any) -> str | None:
        if case.causal and case.q_len != case.kv_len:
            return "its causal mask is aligned to the top left"
        features = case.features
        return f"does not take {features[0]}" if features else None

    def prepare(self, case: Any, inputs: Any) -> Callable[[], Any]:
        # (batch, heads, seqlen, head_dim), as views
        q, k, v = (tensor.transpose(1, 2) for tensor in (inputs.q, inputs.k, inputs.v))
        options = {"is_causal": case.causal, "enable_gqa": case.heads != case.kv_heads}

        def call() -> Any:
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)
            return out.transpose(1, 2)

        return call


def peers(device: str) -> list[Peer]:
    return [TorchSdpa()]
