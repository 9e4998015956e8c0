"""Attention of continuous batching: sequences of all lengths at once over a paged cache.

New keys and values are written to the cache, and attention reads them there with those before them
through a table of pages. Only layers with a sliding window may gather what a batch sees: where a
sequence has several new tokens, new rows take the place of some that the first of these still see.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tilewright._attention import attention
from tilewright._attention_with_kvcache import attention_with_kvcache
from tilewright._errors import UnsupportedError
from tilewright._paged_cache import (
    LastPages,
    PagedLayer,
    layer_of,
    pages_of_blocks,
    pages_of_rows,
)

# What Transformers says of a batch, beside the cache. Some of it is not needed.
BATCH = (
    "block_table",
    "cu_seq_lens_k",
    "cu_seq_lens_q",
    "logits_indices",
    "logits_processor_args",
    "max_length_k",
    "max_length_q",
    "max_seqlen_k",
    "max_seqlen_q",
    "read_index",
    "write_index",
)

_LAST_PAGES = LastPages()


@dataclass(frozen=True)
class Batch:
    """A batch of sequences, as a layer needs it.

    cu_seqlens_q, cu_seqlens_k
                 (sequences + 1,) int32: of new tokens, and of keys, new ones included
    most_new, most_keys
                 of a sequence, or more
    rows         (keys,) int64: where in the cache they are; empty where all are new
    new_rows     (new tokens,) int64: where to write their keys
    block_table  (groups, sequences, blocks) int32, where it is to be used instead of these
    """

    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    most_new: int
    most_keys: int
    rows: Tensor
    new_rows: Tensor
    block_table: Tensor | None


@torch.compiler.disable  # it writes to views of the cache, of which a graph would make copies
def attend(
    cache: Any,
    layer_idx: int,
    qkv: tuple[Tensor, Tensor, Tensor],
    said: dict[str, Any],
    sliding_window: int | None,
    options: dict[str, Any],
) -> Tensor:
    """Attention of q over the cached keys and new ones, which are appended.

    qkv             (tokens, heads or kv heads, head dim), sequences one after the other
    said            what Transformers says of the batch, by the names of BATCH
    sliding_window  what the layer says: how many keys a query sees, its own included
    options         of tilewright.attention()
    """
    layer = layer_of(cache, layer_idx)
    if sliding_window != layer.window:
        message = f"is {sliding_window} for a layer whose cache says {layer.window}, must be equal"
        raise UnsupportedError("unsupported", "sliding_window", message)
    q, k, v = qkv
    if v.shape[-1] != layer.v_rows.shape[-1]:
        message = f"has head dim {v.shape[-1]}, must have {layer.v_rows.shape[-1]} as the cache has"
        raise UnsupportedError("unsupported", "value", message)
    batch = _batch_of(layer, said)
    lengths = {"max_seqlen_q": batch.most_new, "max_seqlen_k": batch.most_keys}
    options = options | lengths | {"cu_seqlens_q": batch.cu_seqlens_q, "causal": True}
    if batch.block_table is not None:
        return _attend_and_append(cache, layer, batch, qkv, options)
    if batch.rows.numel() == 0 or not layer.has_all_keys(batch.most_new):
        if batch.rows.numel() > 0:
            k, v = layer.gather(batch.rows, k, v)
        layer.write(batch.new_rows, *qkv[1:])
        window = (-1, -1) if layer.window is None else (layer.window - 1, 0)
        return attention(q, k, v, cu_seqlens_k=batch.cu_seqlens_k, window_size=window, **options)
    layer.write(batch.new_rows, k, v)
    pages = _LAST_PAGES.of(
        cache,
        layer,
        batch.rows,
        lambda: pages_of_rows(
            layer, batch.rows, batch.new_rows, batch.cu_seqlens_k, batch.most_keys
        ),
    )
    caches = (layer.k_pages, layer.v_pages)
    return attention_with_kvcache(q, *caches, pages.lengths, block_table=pages.table, **options)


def _attend_and_append(
    cache: Any,
    layer: PagedLayer,
    batch: Batch,
    qkv: tuple[Tensor, Tensor, Tensor],
    options: dict[str, Any],
) -> Tensor:
    if layer.window is not None:
        message = "is given for a layer with a sliding window, must be None"
        raise UnsupportedError("unsupported", "block_table", message)
    q, k, v = qkv
    pages = _LAST_PAGES.of(
        cache,
        layer,
        batch.block_table,
        lambda: pages_of_blocks(layer, batch.block_table, batch.cu_seqlens_q, batch.cu_seqlens_k),
    )
    caches = (layer.k_pages, layer.v_pages)
    return attention_with_kvcache(
        q, *caches, pages.lengths, k=k, v=v, block_table=pages.table, **options
    )


def _batch_of(layer: PagedLayer, said: dict[str, Any]) -> Batch:
    """Lengths of keys are said by the kind of layer; most of them under one of two names."""

    def of_layer(value: Any) -> Any:
        return value[layer.kind] if isinstance(value, dict) else value

    def most(side: str) -> int:
        name = f"max_length_{side}" if f"max_length_{side}" in said else f"max_seqlen_{side}"
        return int(of_layer(said[name]))

    return Batch(
        cu_seqlens_q=said["cu_seq_lens_q"].int(),
        cu_seqlens_k=of_layer(said["cu_seq_lens_k"]).int(),
        most_new=most("q"),
        most_keys=most("k"),
        rows=said["read_index"][layer.group],
        new_rows=said["write_index"][layer.group],
        block_table=said.get("block_table"),
    )
