"""This library's kernels, each an entrant of its own, and so are flash's variants."""

from collections.abc import Callable
from functools import partial
from typing import Any

import tilewright
from tilewright._kernels import problem_of
from tilewright.bench.peers import Peer
from tilewright.bench.peers.tilewright_kernel import TilewrightKernel, entrants


class TilewrightAttention(TilewrightKernel):
    def problem_of(self, case: Any) -> Any:
        return problem_of(case.to_json())

    def prepare(self, case: Any, inputs: Any) -> Callable[[], Any]:
        return partial(self._attention, case, inputs)

    def lse(self, case: Any, inputs: Any) -> Any:
        return self._attention(case, inputs, return_lse=True)[1]

    def _attention(self, case: Any, inputs: Any, **options: Any) -> Any:
        return tilewright.attention(
            inputs.q,
            inputs.k,
            inputs.v,
            kernel=self.kernel.name,
            **mask_and_ends(case, inputs),
            **options,
        )


def mask_and_ends(case: Any, inputs: Any) -> dict[str, Any]:
    """What attention() and attention_fp8() take alike."""
    return {
        "causal": case.causal,
        "window_size": case.window_size,
        "softcap": case.softcap,
        "sinks": inputs.sinks,
        "cu_seqlens_q": inputs.cu_seqlens,
        "cu_seqlens_k": inputs.cu_seqlens,
    }


def peers(device: str) -> list[Peer]:
    return entrants("attention", device, TilewrightAttention)
