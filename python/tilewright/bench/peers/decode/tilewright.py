"""This library's kernels, each an entrant of its own, and so are their variants; and two measures:
attention() of keys that lie in no cache, for chunks of prompts, and calls one by one, for batches
in which sequences have different numbers of new tokens."""

import itertools
from collections.abc import Callable, Iterator
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
            "max_seqlen_q": case.most_new,
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


class TilewrightApart(Peer):
    """A packed batch in several calls that are not packed: one for each run of sequences with as
    many new tokens."""

    name = "tilewright/apart"
    version = tilewright.__commit__

    def supports(self, case: Any) -> str | None:
        if not case.lengths:
            return "is the measure of packed batches alone"
        return "takes no E4M3 caches" if case.cache_dtype == "e4m3" else None

    def prepare(self, case: Any, inputs: Any) -> Callable[[], Any]:
        options = _mask(case, inputs) | {"batch_invariant": case.batch_invariant}
        return inputs.rotation(partial(_apart, case, inputs, inputs.new_output(), options))


def _apart(
    case: Any, inputs: Any, out: Any, options: dict[str, Any], k_cache: Any, v_cache: Any
) -> Any:
    for sequences, tokens in _runs(case.lengths):
        shape = (sequences.stop - sequences.start, -1, case.heads)
        table = inputs.block_table
        own = slice(None) if case.page_size else sequences  # rows of the caches
        tilewright.attention_with_kvcache(
            inputs.q[tokens].reshape(*shape, case.head_dim),
            k_cache[own],
            v_cache[own],
            inputs.cache_seqlens[sequences],
            block_table=None if table is None else table[sequences],
            out=out[tokens].reshape(*shape, case.v_dim),
            **options,
        )
    return out


def _runs(lengths: tuple[int, ...]) -> Iterator[tuple[slice, slice]]:
    """Of neighbours with as many new tokens: the sequences, and their tokens among all."""
    sequence = token = 0
    for length, run in itertools.groupby(lengths):
        count = len(list(run))
        sequence_end, token_end = sequence + count, token + count * length
        yield slice(sequence, sequence_end), slice(token, token_end)
        sequence, token = sequence_end, token_end


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
    measures = [TilewrightDense(), TilewrightApart()]
    return [*kernels, *measures] if device.startswith("cuda") else kernels
