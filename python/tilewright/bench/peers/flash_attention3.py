"""FlashAttention-3, which comes in several wheels: what its functions are asked for, and what a
wheel was built without."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tilewright.bench.peers import Peer

HEAD_DIMS = (64, 96, 128, 192, 256)  # each case runs at the next one up that exists
UNEQUAL_HEAD_DIMS = (192, 128)


class FlashAttention3(Peer):
    """`interface` and `flags` are the wheel's module and what it says of its build."""

    def __init__(self, name: str, version: str, interface: Any, flags: dict[str, bool]):
        self.name, self.version = name, version
        self.interface, self.flags = interface, flags
        parameters = inspect.signature(interface.flash_attn_func).parameters
        self.missing = {
            "window": self._lacks("LOCAL"),
            "softcap": self._lacks("SOFTCAP"),
            "sinks": "sinks" not in parameters,
            "packed": self._lacks("VARLEN"),
        }

    def _lacks(self, what: str) -> bool:
        return self.flags[f"FLASHATTENTION_DISABLE_{what}"]

    def supports(self, case: Any) -> str | None:
        if torch.cuda.get_device_capability(case.device)[0] != 9:
            return "runs on Hopper only"
        if not self.takes(case.dtype):
            return f"dtype {case.dtype} is not in this build"
        for feature in case.features:
            if self.missing[feature]:
                return f"{feature} is not in this build"
        return self._why_not_head_dims(case.head_dim, case.v_dim)

    def takes(self, dtype: str) -> bool:
        return dtype == "bf16" or (dtype == "fp16" and not self._lacks("FP16"))

    def _why_not_head_dims(self, head_dim: int, v_dim: int) -> str | None:
        there = [dim for dim in HEAD_DIMS if not self._lacks(f"HDIM{dim}")]
        if max(head_dim, v_dim) > there[-1]:
            return f"head dims {head_dim}, {v_dim}: must be at most {there[-1]}"
        if head_dim == v_dim:
            return None
        if self.flags["FLASH_ATTENTION_DISABLE_HDIMDIFF192"]:
            return f"head dims {head_dim}, {v_dim}: must be equal in this build"
        if (head_dim, v_dim) != UNEQUAL_HEAD_DIMS:
            return f"head dims {head_dim}, {v_dim}: must be equal, or 192, 128"
        return None

    def prepare(self, case: Any, inputs: Any) -> Callable[[], Any]:
        qkv, options = self.tensors(case, inputs), self.options(case, inputs)
        if case.lengths:
            ends, longest = inputs.cu_seqlens, max(case.lengths)
            ends_and_longest = (ends, ends, longest, longest)
            return partial(
                self.interface.flash_attn_varlen_func, *qkv, *ends_and_longest, **options
            )
        if case.q_len < case.kv_len:
            options["num_splits"] = 0  # FlashAttention-3's choice, as with a KV cache
        return partial(self.interface.flash_attn_func, *qkv, **options)

    def tensors(self, case: Any, inputs: Any) -> tuple[Any, Any, Any]:
        """q, k and v."""
        return inputs.q, inputs.k, inputs.v

    def options(self, case: Any, inputs: Any) -> dict[str, Any]:
        options = {"causal": case.causal, "window_size": case.window_size, "softcap": case.softcap}
        return options | ({"sinks": inputs.sinks.bfloat16()} if case.sinks else {})

    def lse(self, case: Any, inputs: Any) -> Any:
        return self.prepare(case, inputs)(return_attn_probs=True)[1]
