"""FlashAttention-3 on FP8, from the wheel fa3-fwd."""

import importlib.metadata

import fa3_fwd_interface
from fa3_fwd_config import CONFIG

from tilewright.bench.peers import Peer
from tilewright.bench.peers.flash_attention3_fp8 import FlashAttention3Fp8


def peers(device: str) -> list[Peer]:
    if not device.startswith("cuda"):
        return []
    version = importlib.metadata.version("fa3-fwd")
    return [FlashAttention3Fp8("fa3", version, fa3_fwd_interface, CONFIG["build_flags"])]
