"""FlashAttention-3 over KV caches. Its plan, from the lengths on the device, is made by a launch of
its own ahead of each call's attention, and is timed with it."""

import inspect
from collections.abc import Callable
from typing import Any

import torch

from tilewright.bench.peers.flash_attention3 import FlashAttention3


class FlashAttention3Decode(FlashAttention3):
    """With an E4M3 cache, Q is converted to E4M3, too, where it is not that already, and not timed:
    there is no other way."""

    def __init__(self, name: str, version: str, interface: Any, flags: dict[str, bool]):
        super().__init__(name, version, interface, flags)
        parameters = inspect.signature(interface.flash_attn_with_kvcache).parameters
        self.missing |= {
            "sinks": "sinks" not in parameters,
            "e4m3 cache": self._lacks("FP8"),
            "row descales": True,
            "prefix_groups": False,  # the result does not depend on the name
        }

    def supports(self, case: Any) -> str | None:
        if case.page_size and self._lacks("PAGEDKV"):
            return "pages are not in this build"
        if case.batch_invariant:
            return "a sequence's bits depend on the rest of the batch"
        return super().supports(case)

    def takes(self, dtype: str) -> bool:
        return dtype == "e4m3" or super().takes(dtype)  # where it takes such a cache

    def setup(self, case: Any) -> dict[str, Any] | None:
        return {"q_dtype": "e4m3"} if case.cache_dtype == "e4m3" != case.dtype else None

    def prepare(self, case: Any, inputs: Any) -> Callable[[], Any]:
        return inputs.rotation(self._call, **_options(case, inputs))

    def lse(self, case: Any, inputs: Any) -> Any:
        options = _options(case, inputs) | {"return_softmax_lse": True}
        return self._call(*inputs.caches[0], **options)[1]

    def _call(self, k_cache: Any, v_cache: Any, q: Any, **options: Any) -> Any:
        return self.interface.flash_attn_with_kvcache(q, k_cache, v_cache, **options)


def _options(case: Any, inputs: Any) -> dict[str, Any]:
    options = {
        "q": inputs.q,
        "cache_seqlens": inputs.cache_seqlens,
        "page_table": inputs.block_table,
        "causal": case.causal,
        "window_size": case.window_size,
        "softcap": case.softcap,
        "num_splits": 0,  # its own choice
    }
    if case.lengths:
        options |= {"cu_seqlens_q": inputs.cu_seqlens_q, "max_seqlen_q": case.most_new}
    if case.sinks:
        options["sinks"] = inputs.sinks.bfloat16()
    if case.cache_dtype == "e4m3":
        shape = (case.batch, case.kv_heads)
        options["q"] = inputs.q.to(torch.float8_e4m3fn)
        if inputs.q_descale is not None:
            options["q_descale"] = inputs.q_descale.expand(shape)
        options["k_descale"] = inputs.k_descale.expand(shape)
        options["v_descale"] = inputs.v_descale.expand(shape)
    return options
