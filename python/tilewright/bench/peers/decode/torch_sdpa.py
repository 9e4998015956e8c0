"""PyTorch's scaled_dot_product_attention, for batches whose sequences are equally long."""

from collections.abc import Callable
from typing import Any

import torch

from tilewright.bench.peers import Peer


class TorchSdpa(Peer):
    name = "torch_sdpa"
    version = torch.__version__

    def supports(self, case: Any) -> str | None:
        if case.page_size or case.kv_lens:
            return "takes neither pages nor lengths"
        if case.batch_invariant:
            return "does not say whether it is batch-invariant"
        features = case.features
        return f"does not take {features[0]}" if features else None

    def prepare(self, case: Any, inputs: Any) -> Callable[[], Any]:
        q = inputs.q.transpose(1, 2)  # (batch, heads, q_len, head_dim), a view
        options = {"enable_gqa": case.heads != case.kv_heads}
        if case.causal and case.q_len > 1:
            at = torch.arange(case.q_len, device=q.device)[:, None] + case.kv_len - case.q_len
            options["attn_mask"] = torch.arange(case.kv_len, device=q.device) <= at

        def attention(k_cache: Any, v_cache: Any) -> Any:
            k, v = k_cache.transpose(1, 2), v_cache.transpose(1, 2)
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)
            return out.transpose(1, 2)

        return inputs.rotation(attention)


def peers(device: str) -> list[Peer]:
    return [TorchSdpa()]
