"""FlashAttention-3, from the wheel fa3-fwd: contiguous caches."""

import importlib.metadata

import fa3_fwd_interface
from fa3_fwd_config import CONFIG

from tilewright.bench.peers import Peer
from tilewright.bench.peers.flash_attention3_decode import FlashAttention3Decode

VERSION = importlib.metadata.version("fa3-fwd")


def peers(device: str) -> list[Peer]:
    if not device.startswith("cuda"):
        return []
    return [FlashAttention3Decode("fa3", VERSION, fa3_fwd_interface, CONFIG["build_flags"])]
