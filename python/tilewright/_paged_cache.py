"""Transformers' paged KV caches, as attention reads and writes them.

A cache of continuous batching counts rows: a row holds the keys, or the values, of one token in one
layer. Its indices say which rows a batch reads and writes, its block tables which blocks. Pages are
made of both here. The memory is arranged in one of two ways, by the version of Transformers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from tilewright._errors import UnsupportedError


@dataclass(frozen=True)
class PagedLayer:
    """A layer's part of a paged cache.

    k_pages, v_pages  (pages, page size, kv heads, head dim)
    k_rows, v_rows    (rows, kv heads, head dim): the same memory by the cache's indices, and more
    page_stride       page p begins at row p * page_stride
    table_stride      page p is p * table_stride in a block table of the cache
    group             the layer's place in lists of indices and tables
    kind              its key in dictionaries of lengths
    is_first          whether no layer of its group runs before it
    window            how many keys a query sees, its own included; None: all. The cache holds as
                      many: a new row takes the place of the one that falls out
    new_row           stands in indices of rows to read for a token that is not in the cache yet
    """

    k_pages: Tensor
    v_pages: Tensor
    k_rows: Tensor
    v_rows: Tensor
    page_stride: int
    table_stride: int
    group: int
    kind: str
    is_first: bool
    window: int | None
    new_row: int

    @property
    def page_size(self) -> int:
        return self.k_pages.shape[1]

    def has_all_keys(self, most_new: int) -> bool:
        """Whether pages hold whatever the queries see, once the new rows are written.

        With a window that is so for one new token of a sequence. It sees all rows that are there,
        whatever their order; the pages must be full, or one page hold the window.
        """
        if self.window is None:
            return True
        fits = self.window <= self.page_size or self.window % self.page_size == 0
        return fits and most_new == 1

    def write(self, index: Tensor, k: Tensor, v: Tensor) -> None:
        """k and v (tokens, kv heads, head dim) to these rows."""
        self.k_rows.index_copy_(0, index, k)
        self.v_rows.index_copy_(0, index, v)

    def gather(self, index: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of an index, k and v in their order where it says so."""
        is_new = (index == self.new_row)[:, None, None]
        pairs = ((self.k_rows, k), (self.v_rows, v))
        return tuple(rows[index].masked_scatter_(is_new, new) for rows, new in pairs)


def layer_of(cache: Any, layer_idx: int) -> PagedLayer:
    layers = _LAYERS.setdefault(cache, {})
    if layer_idx not in layers:
        if hasattr(cache, "layer_to_allocator"):
            layers[layer_idx] = _layer_of_blocks(cache.layer_to_allocator[layer_idx], layer_idx)
        elif hasattr(cache, "layer_index_to_group_indices"):
            layers[layer_idx] = _layer_of_tensors(cache, layer_idx)
        else:
            message = f"is a {type(cache).__name__} that this version of Tilewright does not know"
            raise UnsupportedError("unsupported", "cache", message)
    return layers[layer_idx]


# Layers by their number, of each cache.
_LAYERS: WeakKeyDictionary[Any, dict[int, PagedLayer]] = WeakKeyDictionary()


def _layer_of_blocks(allocator: Any, layer_idx: int) -> PagedLayer:
    """Of caches where a block has the keys and the values of a page for each layer of a group."""
    place = allocator.layer_indices.index(layer_idx)
    layers, page_size = len(allocator.layer_indices), allocator.tokens_per_page
    heads = (allocator.num_key_value_heads, allocator.head_dim)
    blocks = allocator.cache_tensor.view(-1, layers, 2, page_size, *heads)
    rows = allocator.cache_tensor.view(-1, *heads)
    return PagedLayer(
        k_pages=blocks[:, place, 0],
        v_pages=blocks[:, place, 1],
        k_rows=rows[2 * place * page_size :],
        v_rows=rows[(2 * place + 1) * page_size :],
        page_stride=2 * layers * page_size,
        table_stride=2 * layers,
        group=allocator.index,
        kind=allocator.layer_type,
        is_first=place == 0,
        window=getattr(allocator, "sliding_window", None),
        new_row=allocator.sentinel_index,
    )


def _layer_of_tensors(cache: Any, layer_idx: int) -> PagedLayer:
    """Of caches that have two tensors for each layer of a group, as Transformers 5.17 has them."""
    group, place = cache.layer_index_to_group_indices[layer_idx]
    k_rows, v_rows = cache.key_cache[place], cache.value_cache[place]
    has_window = cache.sliding_windows[layer_idx] != 1
    return PagedLayer(
        k_pages=k_rows.unflatten(0, (-1, cache.block_size)),
        v_pages=v_rows.unflatten(0, (-1, cache.block_size)),
        k_rows=k_rows,
        v_rows=v_rows,
        page_stride=cache.block_size,
        table_stride=1,
        group=group,
        kind="sliding_attention" if has_window else "full_attention",
        is_first=place == 0,
        window=cache.sliding_windows[layer_idx] if has_window else None,
        new_row=cache.sentinel_index,
    )


@dataclass(frozen=True)
class Pages:
    """Of a batch's sequences, for all layers of a group.

    table    (sequences, most pages) int32, beyond a sequence's last page anything
    lengths  (sequences,) int32: keys
    """

    table: Tensor
    lengths: Tensor


def pages_of_rows(
    layer: PagedLayer, rows: Tensor, new_rows: Tensor, cu_seqlens: Tensor, most_keys: int
) -> Pages:
    """Of sequences whose keys have these rows, one sequence after the other.

    rows        (keys,), new_rows (new keys,)
    cu_seqlens  (sequences + 1,) int32, in `rows`
    most_keys   of a sequence
    """
    if layer.window is not None:
        rows = rows.masked_scatter(rows == layer.new_row, new_rows)
    steps = torch.arange(0, most_keys, layer.page_size, device=rows.device)
    firsts = (cu_seqlens[:-1, None] + steps).clamp(max=rows.shape[0] - 1)
    table = rows[firsts].div(layer.page_stride, rounding_mode="floor")
    return Pages(table.int(), cu_seqlens.diff())


def pages_of_blocks(
    layer: PagedLayer, block_table: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor
) -> Pages:
    """Of block tables (groups, sequences, blocks); the lengths are those before the new keys."""
    table = block_table[layer.group].div(layer.table_stride, rounding_mode="floor")
    return Pages(table.int(), cu_seqlens_k.diff() - cu_seqlens_q.diff())


class LastPages:
    """The pages of the last batch. The first layer of a group finds them, the others reuse them.

    The first finds them anew even if the batch seems to be the same: a tensor of indices may hold
    others now, and a CUDA graph that is being captured must have the work in it.
    """

    def __init__(self) -> None:
        self._found: WeakKeyDictionary[Any, dict[int, tuple[Tensor, Pages]]] = WeakKeyDictionary()

    def of(self, cache: Any, layer: PagedLayer, indices: Tensor, find: Callable) -> Pages:
        """Those of a layer's group and a batch that has these indices; find() finds them."""
        found = self._found.setdefault(cache, {})
        of_indices, pages = found.get(layer.group, (None, None))
        if layer.is_first or of_indices is not indices:
            pages = find()
            found[layer.group] = (indices, pages)
        return pages
