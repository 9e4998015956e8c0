"""Random queries and KV caches, in the forms that implementations take, and what they give."""

import itertools
import math
from collections.abc import Iterator
from functools import cached_property, partial
from typing import Any

from tilewright.bench import oracle
from tilewright.bench.inputs import random_sinks
from tilewright.bench.tensors import (
    as_integers,
    constant,
    copy_of,
    filled,
    in_float64,
    normal,
    permutation,
)
from tilewright.bench.timing import Rotation, copies_to_rotate

# A cache that is so many times what must be read between two reads of it is not copied: what a read
# leaves in the L2 cache is less than 1 % of it.
LARGE = 64
DESCALES = (0.75, 0.5)  # of K and of V; in every other row, twice that
DESCALE_OF_Q = 1.5


class KvCacheInputs:
    """q        (batch, q_len, heads, head_dim); packed: (q_len, heads, head_dim)
    caches   copies to be rotated: (k_cache, v_cache), each (batch, kv_len, kv_heads, ...) or
             (pages, page_size, kv_heads, ...)
    storages the memory of each copy, flat: K's and then V's
    cache_seqlens
             (batch,) int32: keys, those of the new tokens included
    block_table
             (batch, most pages) int32: pages in random order, 0 beyond a sequence's length; None
             where caches are contiguous. Pages of a shared prefix are the first sequence's
    prefix_groups, prefix_seqlens
             int32: (0, batch) and (keys of the prefix,) where a call names it; else None
    cu_seqlens_q
             (batch + 1,) int32 where packed; else None
    q_descale
             fp32: (1,); None where q is not in E4M3
    k_descale, v_descale
             fp32: (1,), (batch, kv_heads) or of the cache's shape without the head dimension; None
             where the caches are not in E4M3
    sinks    as random_sinks() gives them; None without them
    """

    def __init__(self, case: Any, seed: int):
        self.case = case
        batch = () if case.lengths else (case.batch,)
        shape = (*batch, case.q_len, case.heads, case.head_dim)
        (self.q,) = normal([shape], case.dtype, case.device, seed)
        self.kv_lens = [kv_len for _, kv_len in case.sequences]
        self.cache_seqlens = constant(self.kv_lens, "int32", case.device)
        ends = list(itertools.accumulate(case.lengths, initial=0))
        self.cu_seqlens_q = constant(ends, "int32", case.device) if case.lengths else None
        self.block_table = self._new_block_table(seed) if case.page_size else None
        self.storages = self._new_storages(seed)
        groups, keys = [0, case.batch], [case.shared_prefix]
        self.prefix_groups, self.prefix_seqlens = (
            constant(values, "int32", case.device) if case.names_prefix else None
            for values in (groups, keys)
        )
        self.caches = [self._split(storage) for storage in self.storages]
        is_e4m3 = case.dtype == "e4m3"
        self.q_descale = constant([DESCALE_OF_Q], "fp32", case.device) if is_e4m3 else None
        self.k_descale, self.v_descale = map(self._new_descale, DESCALES)
        self.sinks = random_sinks(case, seed) if case.sinks else None

    @property
    def rows(self) -> tuple[int, int]:
        """The first two sizes of a cache."""
        if not self.case.page_size:
            return self.case.batch, self.case.kv_len
        return sum(map(self._pages, self.kv_lens)), self.case.page_size

    def _pages(self, kv_len: int) -> int:
        return math.ceil(kv_len / self.case.page_size)

    def _new_block_table(self, seed: int) -> Any:
        counts = [self._pages(kv_len) for kv_len in self.kv_lens]
        pages = permutation(sum(counts), self.case.device, seed)
        table = filled((len(counts), max(counts)), 0, "int32", self.case.device)
        for row, count, end in zip(table, counts, itertools.accumulate(counts), strict=True):
            row[:count] = pages[end - count : end]
        if self.case.shared_prefix:
            count = self.case.shared_prefix // self.case.page_size
            table[1:, :count] = table[0, :count]
        return table

    def _new_storages(self, seed: int) -> list[Any]:
        case = self.case
        elements = math.prod(self.rows) * case.kv_heads * (case.head_dim + case.v_dim)
        (first,) = normal([(elements,)], case.cache_dtype, case.device, seed + 1)
        is_large = case.kv_bytes >= LARGE * case.between_bytes > 0
        count = 1 if is_large else copies_to_rotate(case.kv_bytes, case.between_bytes)
        return [first] + [copy_of(first) for _ in range(count - 1)]

    def _split(self, storage: Any) -> tuple[Any, Any]:
        case = self.case
        end = math.prod(self.rows) * case.kv_heads * case.head_dim
        k_cache = storage[:end].reshape(*self.rows, case.kv_heads, case.head_dim)
        return k_cache, storage[end:].reshape(*self.rows, case.kv_heads, case.v_dim)

    def _new_descale(self, factor: float) -> Any:
        """All the factor, or in every other row twice the factor."""
        case = self.case
        if case.cache_dtype != "e4m3":
            return None
        shapes = {
            "tensor": (1,),
            "head": (case.batch, case.kv_heads),
            "token": (*self.rows, case.kv_heads),
        }
        descale = filled(shapes[case.descale], factor, "fp32", case.device)
        if case.descale != "tensor":
            descale[::2] *= 2
        return descale

    def rotation(self, call: Any, **options: Any) -> Rotation:
        """Calls of call(k_cache, v_cache, **options), one for each copy."""
        return Rotation([partial(call, *caches, **options) for caches in self.caches])

    def new_output(self) -> Any:
        """NaN wherever nothing is written."""
        shape = (*self.q.shape[:-1], self.case.v_dim)
        return filled(shape, float("nan"), self.case.out_dtype, self.case.device)

    def sequences(self) -> Iterator[tuple[Any, Any, Any]]:
        """(q, k, v) of each, with the numbers that E4M3 queries and caches stand for, in float64
        where they are such."""
        queries = self.q
        if self.q_descale is not None:
            queries = in_float64(queries) * in_float64(self.q_descale)
        for b, q in enumerate(oracle.by_sequence(self.case, queries, axis=0)):
            descales = (self.k_descale, self.v_descale)
            k, v = (self._rows_of(b, *pair) for pair in zip(self.caches[0], descales, strict=True))
            yield q, k, v

    def _rows_of(self, b: int, cache: Any, descale: Any) -> Any:
        """(keys, kv_heads, ...) of a sequence."""
        rows = self._gather(b, cache)
        if descale is None:
            return rows
        if self.case.descale == "token":
            factors = self._gather(b, descale)[..., None]
        else:
            factors = descale[b if self.case.descale == "head" else 0].reshape(-1, 1)
        return in_float64(rows) * in_float64(factors)

    def _gather(self, b: int, cache: Any) -> Any:
        kv_len = self.kv_lens[b]
        if self.block_table is None:
            return cache[b, :kv_len]
        pages = self.block_table[b, : self._pages(kv_len)]
        rows = as_integers(cache)[pages].view(cache.dtype)  # E4M3 cannot be indexed everywhere
        return rows.reshape(-1, *cache.shape[2:])[:kv_len]

    @cached_property
    def expected(self) -> oracle.Expected:
        return oracle.expect(self.case, self)
