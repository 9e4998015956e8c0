"""A plain read of as many bytes as an implementation must read of the KV caches: the roof.

What it reads lies in one piece, in the memory of the caches, whatever their layout and lengths.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tilewright.bench.peers import PLAIN_READ, Peer
from tilewright.bench.timing import Rotation


class PlainRead(Peer):
    """`read` is of int32 words; what it returns is of no use."""

    name = PLAIN_READ
    is_answer = False

    def __init__(self, version: str, read: Callable[[Any], Any]):
        self.version = version
        self.read = read

    def supports(self, case: Any) -> str | None:
        return None

    def prepare(self, case: Any, inputs: Any) -> Callable[[], Any]:
        count = case.kv_bytes // 4
        words = [storage.view(torch.int32)[:count] for storage in inputs.storages]
        return Rotation([partial(self.read, each) for each in words])


def peers(device: str) -> list[Peer]:
    if not device.startswith("cuda"):
        return [PlainRead(f"PyTorch {torch.__version__}", partial(torch.sum, dtype=torch.int32))]
    from tilewright.bench.peers.read_kernel import VERSION, Reader

    return [PlainRead(VERSION, Reader(device))]
