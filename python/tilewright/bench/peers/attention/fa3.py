"""FlashAttention-3, from the wheel fa3-fwd."""

import importlib.metadata
from collections.abc import Callable
from typing import Any

import torch
from fa3_fwd_config import CONFIG
from fa3_fwd_interface import flash_attn_func, flash_attn_varlen_func

from tilewright.bench.peers import Peer

FLAGS = CONFIG["build_flags"]
HEAD_DIMS = (64, 96, 128, 192, 256)  # each case runs at the next one up
UNEQUAL_HEAD_DIMS = (192, 128)


class FlashAttention3(Peer):
    name = "fa3"
    version = importlib.metadata.version("fa3-fwd")

    def supports(self, case: Any) -> str | None:
        if torch.cuda.get_device_capability(case.device)[0] != 9:
            return "runs on Hopper only"
        if case.dtype != "bf16" and (case.dtype != "fp16" or FLAGS["FLASHATTENTION_DISABLE_FP16"]):
            return f"dtype {case.dtype} is not in this build"
        head_dims = (case.head_dim, case.v_dim)
        if max(head_dims) > HEAD_DIMS[-1]:
            return f"head dims {case.head_dim}, {case.v_dim}: must be at most {HEAD_DIMS[-1]}"
        if case.head_dim != case.v_dim and head_dims != UNEQUAL_HEAD_DIMS:
            return f"head dims {case.head_dim}, {case.v_dim}: must be equal, or 192, 128"
        return None

    def prepare(self, case: Any, inputs: Any) -> Callable[[], Any]:
        qkv = (inputs.q, inputs.k, inputs.v)
        if not case.lengths:
            return lambda: flash_attn_func(*qkv, causal=case.causal)
        ends, longest = inputs.cu_seqlens, max(case.lengths)
        return lambda: flash_attn_varlen_func(
            *qkv, ends, ends, longest, longest, causal=case.causal
        )


def peers(device: str) -> list[Peer]:
    return [FlashAttention3()] if device.startswith("cuda") else []
