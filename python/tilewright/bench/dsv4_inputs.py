"""Random queries and caches of DeepSeek-V4's attention, and what they give in float64."""

import math
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import torch

import tilewright
from tilewright.bench.dsv4 import DIM, ROW_BYTES
from tilewright.bench.oracle import Expected
from tilewright.bench.tensors import normal, permutation
from tilewright.bench.timing import Rotation, copies_to_rotate

ROTARY_DIMS = 64
POSITIONS = 4096  # of the rotation
PLANE_BYTES = 576  # pages of rows in planes are padded to multiples of it
MOST_ROWS = 1 << 16  # that are quantised at a time


class Dsv4Inputs:
    """q        (batch, q_len, heads, 512)
    caches   copies to be rotated: (window rows, compressed rows), None where there is no such scope
    storages the memory of each copy, flat
    window_table, window_end, window_begin
             int32: pages of requests, and the positions that a token sees
    compressed_table, compressed_end
             int32, where the compressed keys are a range; else None
    indices  (batch, q_len, compressed) int32, where they are a list; else None
    sinks    (heads,) fp32; None without them
    rotation_back
             rotary_cos, rotary_sin and positions; none without inverse RoPE
    """

    def __init__(self, case: Any, seed: int):
        self.case = case
        (self.q,) = normal(
            [(case.batch, case.q_len, case.heads, DIM)], case.dtype, case.device, seed
        )
        self.window_table = self._new_table(case.window_page_size, self._window_rows, seed + 1)
        ends = torch.arange(case.q_len, dtype=torch.int32, device=case.device)
        self.window_begin = ends.repeat(case.batch, 1)
        self.window_end = self.window_begin + case.window
        self.compressed_table = self._new_table(case.compressed_page_size, case.context, seed + 2)
        self.compressed_end = torch.full_like(self.window_end, case.compressed)
        self.indices = self._new_lists(seed + 3) if case.compressed_keys == "list" else None
        self.storages = self._new_storages(seed + 4)
        self.caches = [self._split(storage) for storage in self.storages]
        (sinks,) = normal([(case.heads,)], "fp32", case.device, seed + 5)
        self.sinks = sinks if case.sinks else None
        self.rotation_back = self._new_rotation(seed + 6) if case.inverse_rope else {}

    @property
    def _window_rows(self) -> int:
        """Of a request."""
        return self.case.window + self.case.q_len - 1 if self.case.window else 0

    def _new_table(self, page_size: int, rows: int, seed: int) -> Any:
        pages = math.ceil(rows / page_size)
        table = permutation(self.case.batch * pages, self.case.device, seed)
        return table.int().reshape(self.case.batch, pages)

    def _new_lists(self, seed: int) -> Any:
        """Different rows of the token's request, in random order."""
        case = self.case
        if not case.compressed:
            return None
        generator = torch.Generator(device=case.device).manual_seed(seed)
        shape = (case.batch, case.q_len, case.context)
        order = torch.rand(shape, generator=generator, device=case.device).argsort(dim=-1)
        positions = order[..., : case.compressed].reshape(case.batch, -1)
        return self._slots(positions, self.compressed_table, case.compressed_page_size).reshape(
            case.batch, case.q_len, case.compressed
        )

    @staticmethod
    def _slots(positions: Any, table: Any, page_size: int) -> Any:
        """(batch, n) positions of requests as slots."""
        pages = table.gather(1, positions // page_size)
        return (pages * page_size + positions % page_size).int()

    def window_indices(self) -> Any:
        """The window as lists, (batch, q_len, window)."""
        case = self.case
        offsets = torch.arange(case.window, device=case.device)
        positions = (self.window_begin[..., None] + offsets).reshape(case.batch, -1)
        slots = self._slots(positions, self.window_table, case.window_page_size)
        return slots.reshape(case.batch, case.q_len, case.window)

    def first_indices(self) -> Any:
        """The first compressed keys as lists, (batch, q_len, compressed)."""
        case = self.case
        positions = torch.arange(case.compressed, device=case.device).repeat(case.batch, 1)
        slots = self._slots(positions, self.compressed_table, case.compressed_page_size)
        return slots[:, None].repeat(1, case.q_len, 1)

    # ---- Caches

    def _page_bytes(self, rows: str, page_size: int) -> int:
        size = page_size * ROW_BYTES[rows]
        return math.ceil(size / PLANE_BYTES) * PLANE_BYTES if rows == "e4m3_bf16" else size

    def _scopes(self) -> list[tuple[str, int, int]]:
        """(rows, page size, pages) of both, 0 pages where there is no such scope."""
        case = self.case
        compressed = self.compressed_table.numel() if case.compressed else 0
        return [
            (case.window_rows, case.window_page_size, self.window_table.numel()),
            (case.compressed_rows, case.compressed_page_size, compressed),
        ]

    def _new_storages(self, seed: int) -> list[Any]:
        case = self.case
        sizes = [pages * self._page_bytes(rows, size) for rows, size, pages in self._scopes()]
        words = math.ceil(sum(sizes) / 4)  # of int32, which a plain read takes
        first = torch.zeros(4 * words, dtype=torch.uint8, device=case.device)
        for index, rows in enumerate(cache for cache in self._split(first) if cache is not None):
            _fill(rows, case.device, seed + index)
        count = copies_to_rotate(case.kv_bytes, case.between_bytes)
        return [first] + [first.clone() for _ in range(count - 1)]

    def _split(self, storage: Any) -> tuple[Any, Any]:
        caches, begin = [], 0
        for rows, page_size, pages in self._scopes():
            page_bytes = self._page_bytes(rows, page_size)
            end = begin + pages * page_bytes
            caches.append(_view(storage[begin:end], rows, page_size, page_bytes) if pages else None)
            begin = end
        return tuple(caches)

    def rotation(self, call: Callable[..., Any], **options: Any) -> Rotation:
        """Calls of call(window_rows, compressed_rows, **options), one for each copy."""
        return Rotation([partial(call, *caches, **options) for caches in self.caches])

    def new_output(self) -> Any:
        return torch.empty_like(self.q)

    def _new_rotation(self, seed: int) -> dict[str, Any]:
        case = self.case
        cos, sin = (torch.as_tensor(table) for table in tilewright.rope_tables(POSITIONS))
        generator = torch.Generator().manual_seed(seed)
        shape = (case.batch, case.q_len)
        tables = {"rotary_cos": cos, "rotary_sin": sin}
        tables["positions"] = torch.randint(POSITIONS, shape, generator=generator)
        return {name: tensor.to(case.device) for name, tensor in tables.items()}

    # ---- What is expected

    @cached_property
    def expected(self) -> Expected:
        """Of each request, in float64."""
        results = [self._attend(request) for request in range(self.case.batch)]
        outs, lses = zip(*results, strict=True)
        return Expected(list(outs), list(lses))

    def _attend(self, request: int) -> tuple[Any, Any]:
        """(out, lse) of a request."""
        case = self.case
        keys = torch.stack([self._keys(request, i) for i in range(case.q_len)])
        scores = self.q[request].double() @ keys.mT / math.sqrt(DIM)  # (q_len, heads, keys)
        lse = scores.logsumexp(dim=-1)
        if self.sinks is not None:
            lse = torch.logaddexp(lse, self.sinks.double())
        out = (scores - lse[..., None]).exp() @ keys
        if self.rotation_back:
            out = self._rotated_back(out, request)
        return out, lse.mT

    def _keys(self, request: int, token: int) -> Any:
        """(keys, 512) in float64."""
        case = self.case
        window_rows, compressed_rows = self.caches[0]
        keys = []
        if case.window:
            keys.append(_values(window_rows, self.window_indices()[request, token]))
        if case.compressed:
            lists = self.first_indices() if self.indices is None else self.indices
            keys.append(_values(compressed_rows, lists[request, token]))
        return torch.cat(keys)

    def _rotated_back(self, out: Any, request: int) -> Any:
        positions = self.rotation_back["positions"][request]
        cos, sin = (
            self.rotation_back[name][positions].double()[:, None]
            for name in ("rotary_cos", "rotary_sin")
        )
        x, y = out[..., -ROTARY_DIMS::2], out[..., 1 - ROTARY_DIMS :: 2]
        pairs = torch.stack([x * cos + y * sin, y * cos - x * sin], dim=-1)
        return torch.cat([out[..., :-ROTARY_DIMS], pairs.flatten(-2)], dim=-1)


def _view(memory: Any, rows: str, page_size: int, page_bytes: int) -> Any:
    """Pages of rows in flat memory, of bytes or of BF16."""
    size = 2 if rows == "bf16" else 1
    memory = memory.view(torch.bfloat16) if rows == "bf16" else memory
    shape = (len(memory) * size // page_bytes, page_size, ROW_BYTES[rows] // size)
    return memory.as_strided(shape, (page_bytes // size, ROW_BYTES[rows] // size, 1))


def _fill(rows: Any, device: str, seed: int) -> None:
    """With normal values, some rows at a time."""
    count = rows.shape[0] * rows.shape[1]
    for first in range(0, count, MOST_ROWS):
        slots = torch.arange(first, min(first + MOST_ROWS, count), device=device)
        (x,) = normal([(len(slots), DIM)], "bf16", device, seed + first)
        tilewright.quantize_kv_rows(x, rows, slots)


def _values(rows: Any, slots: Any) -> Any:
    return tilewright.dequantize_kv_rows(rows, slots.long(), dtype="float32").double()
