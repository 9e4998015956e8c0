"""This library's kernels, each an entrant of its own, and so are their variants; and attention() of
keys that lie in no cache, as the measure of chunks of prompts."""

from collections.abc import Callable
from functools import partial
from typing import Any

import tilewright
from tilewright._kernels import kvcache_problem_of
from tilewright.bench.peers import Peer
from tilewright.bench.peers.tilewright_kernel import TilewrightKernel, entrants


class TilewrightDecode(TilewrightKernel):
    def problem_of(self, case: Any) -> Any:
        return kvcache_problem_of(case.to_json())

    def prepare(self, case: Any, inputs: Any) -> Callable[[], Any]:
        options = self._options(case, inputs) | {"out": inputs.new_output()}
        return inputs.rotation(partial(_attention, inputs), **options)

    def lse(self, case: Any, inputs: Any) -> Any:
        options = self._options(case, inputs) | {"return_lse": True}
        return _attention(inputs, *inputs.caches[0], **options)[1]

    def _options(self, case: Any, inputs: Any) -> dict[str, Any]:
        return {
            "block_table": inputs.block_table,
            "prefix_groups": inputs.prefix_groups,
            "prefix_seqlens": inputs.prefix_seqlens,
            "cu_seqlens_q": inputs.cu_seqlens_q,
            "q_descale": inputs.q_descale,
            "k_descale": inputs.k_descale,
            "v_descale": inputs.v_descale,
            "batch_invariant": case.batch_invariant,
            "kernel": self.kernel.name,
        } | _mask(case, inputs)


class TilewrightDense(Peer):
    """The same without lengths: all rows of the caches are keys."""

    name = "tilewright/attention"
    version = tilewright.__commit__

    def supports(self, case: Any) -> str | None:
        if case.lengths or case.kv_lens or case.page_size:
            return "takes neither pages nor lengths"
        if case.cache_dtype == "e4m3" or case.batch_invariant:
            return "takes no E4M3 caches and is not batch-invariant"
        return "is the measure of many new tokens alone" if case.q_len == 1 else None

    def prepare(self, case: Any, inputs: Any) -> Callable[[], Any]:
        options = _mask(case, inputs) | {"out": inputs.new_output()}
        return inputs.rotation(partial(tilewright.attention, inputs.q), **options)


def _mask(case: Any, inputs: Any) -> dict[str, Any]:
    return {
        "causal": case.causal,
        "window_size": case.window_size,
        "softcap": case.softcap,
        "sinks": inputs.sinks,
    }


def _attention(inputs: Any, k_cache: Any, v_cache: Any, **options: Any) -> Any:
    return tilewright.attention_with_kvcache(
        inputs.q, k_cache, v_cache, inputs.cache_seqlens, **options
    )


def peers(device: str) -> list[Peer]:
    kernels = entrants("attention_with_kvcache", device, TilewrightDecode)
    return [*kernels, TilewrightDense()] if device.startswith("cuda") else kernels
