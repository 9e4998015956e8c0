"""FlashAttention-3, from the wheel fa3-fwd."""

import importlib.metadata
from collections.abc import Callable
from typing import Any

import torch
from fa3_fwd_config import CONFIG
from fa3_fwd_interface import flash_attn_func

from tilewright.bench.peers import Peer

FLAGS = CONFIG["build_flags"]
HEAD_DIMS = (64, 96, 128, 192, 256)  # each case runs at the next one up


class FlashAttention3(Peer):
    name = "fa3"
    version = importlib.metadata.version("fa3-fwd")

    def supports(self, case: Any) -> str | None:
        if torch.cuda.get_device_capability(case.device)[0] != 9:
            return "runs on Hopper only"
        if case.dtype != "bf16" and (case.dtype != "fp16" or FLAGS["FLASHATTENTION_DISABLE_FP16"]):
            return f"dtype {case.dtype} is not in this build"
        if case.head_dim > HEAD_DIMS[-1] or case.head_dim != case.v_dim:
            return f"head dims {case.head_dim}, {case.v_dim}: must be equal, at most 256"
        return None

    def prepare(self, case: Any, inputs: Any) -> Callable[[], Any]:
        return lambda: flash_attn_func(inputs.q, inputs.k, inputs.v, causal=case.causal)


def peers(device: str) -> list[Peer]:
    return [FlashAttention3()] if device.startswith("cuda") else []
