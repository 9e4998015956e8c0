"""A copy of as many bytes as an operation reads and writes: the roof."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tilewright.bench.peers import COPY, Peer


class Copy(Peer):
    name = COPY
    version = f"PyTorch {torch.__version__}"
    is_answer = False

    def supports(self, case: Any) -> str | None:
        return None

    def prepare(self, case: Any, inputs: Any) -> Callable[[], Any]:
        half = case.compulsory_bytes // 2
        source = torch.zeros(half, dtype=torch.uint8, device=case.device)
        return partial(torch.empty_like(source).copy_, source)


def peers(device: str) -> list[Peer]:
    return [Copy()]
