"""FlashAttention-3, from the wheel tokenspeed-fa3: FP16, windows and sinks, which fa3-fwd has not.

Their modules and operators have names of their own, so that both can be installed. The names of
these are upstream's.
"""

import importlib.metadata

import flash_attn_interface
from flash_attn_config import CONFIG

from tilewright.bench.peers import Peer
from tilewright.bench.peers.flash_attention3 import FlashAttention3

VERSION = importlib.metadata.version("tokenspeed-fa3")


def peers(device: str) -> list[Peer]:
    if not device.startswith("cuda"):
        return []
    return [FlashAttention3("fa3_tokenspeed", VERSION, flash_attn_interface, CONFIG["build_flags"])]
