"""FlashAttention-3, from the wheel tokenspeed-fa3: caches in pages, FP16, windows and sinks, which
fa3-fwd has not."""

import importlib.metadata

import flash_attn_interface
from flash_attn_config import CONFIG

from tilewright.bench.peers import Peer
from tilewright.bench.peers.flash_attention3_decode import FlashAttention3Decode

VERSION = importlib.metadata.version("tokenspeed-fa3")


def peers(device: str) -> list[Peer]:
    if not device.startswith("cuda"):
        return []
    flags = CONFIG["build_flags"]
    return [FlashAttention3Decode("fa3_tokenspeed", VERSION, flash_attn_interface, flags)]
