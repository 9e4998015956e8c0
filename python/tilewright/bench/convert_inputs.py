"""Random tensors that are converted, and what the CPU's kernels make of them."""

import abc
import math
from functools import cached_property
from typing import Any

import torch

import tilewright
from tilewright.bench.dsv4 import DIM, ROW_BYTES
from tilewright.bench.tensors import LIBRARY_DTYPES, normal, permutation

POSITIONS = 4096


class ConversionInputs(abc.ABC):
    """tensors  what a call takes, by its arguments' names"""

    tensors: dict[str, Any]

    def __init__(self, case: Any, seed: int):
        self.case = case
        self.dtype = getattr(torch, LIBRARY_DTYPES[case.dtype])

    @abc.abstractmethod
    def new_output(self) -> Any:
        """Where a call writes what is checked."""

    @abc.abstractmethod
    def call(self, tensors: dict[str, Any], out: Any, kernel: str) -> Any:
        """What a call gives."""

    @cached_property
    def expected(self) -> Any:
        tensors = {name: tensor.cpu() for name, tensor in self.tensors.items()}
        return self.call(tensors, torch.zeros_like(self.new_output(), device="cpu"), "cpu")


class RotateQuantizeInputs(ConversionInputs):
    def __init__(self, case: Any, seed: int):
        super().__init__(case, seed)
        shape = (case.batch, case.len, case.heads, case.head_dim)
        (x,) = normal([shape], case.dtype, case.device, seed)
        self.tensors = {"x": x}

    def new_output(self) -> Any:
        case = self.case
        shape = (case.batch, case.len, case.heads, case.head_dim)
        if case.transposed:
            shape = (case.batch, case.heads, case.head_dim, 16 * math.ceil(case.len / 16))
        return torch.empty(shape, dtype=torch.float8_e4m3fn, device=case.device)

    def call(self, tensors: dict[str, Any], out: Any, kernel: str) -> Any:
        options = {"transposed": self.case.transposed, "seed": 1 if self.case.rotated else None}
        return tilewright.rotate_quantize(**tensors, **options, out=out, kernel=kernel)[0]


class DequantizeInputs(ConversionInputs):
    """rows and their slots: every row has a page that is anywhere, and its own place there."""

    def __init__(self, case: Any, seed: int):
        super().__init__(case, seed)
        pages = math.ceil(case.rows / case.page_size)
        order = permutation(pages, case.device, seed)
        places = torch.arange(case.page_size, device=case.device)
        slots = (order[:, None] * case.page_size + places).flatten()[: case.rows].long()
        (x,) = normal([(case.rows, DIM)], case.dtype, case.device, seed + 1)
        dtype, size = (torch.bfloat16, 2) if case.format == "bf16" else (torch.uint8, 1)
        shape = (pages, case.page_size, ROW_BYTES[case.format] // size)
        rows = torch.zeros(shape, dtype=dtype, device=case.device)
        tilewright.quantize_kv_rows(x, rows, slots)
        self.tensors = {"rows": rows, "slot_mapping": slots}

    def new_output(self) -> Any:
        return torch.empty((self.case.rows, DIM), dtype=self.dtype, device=self.case.device)

    def call(self, tensors: dict[str, Any], out: Any, kernel: str) -> Any:
        return tilewright.dequantize_kv_rows(**tensors, out=out, kernel=kernel)


class RopeInputs(ConversionInputs):
    def __init__(self, case: Any, seed: int):
        super().__init__(case, seed)
        (x,) = normal([(case.tokens, case.heads, DIM)], case.dtype, case.device, seed)
        cos, sin = (torch.as_tensor(table) for table in tilewright.rope_tables(POSITIONS))
        generator = torch.Generator().manual_seed(seed)
        positions = torch.randint(POSITIONS, (case.tokens,), generator=generator)
        names = {"rotary_cos": cos, "rotary_sin": sin, "positions": positions}
        self.tensors = {"x": x} | {name: t.to(case.device) for name, t in names.items()}

    def new_output(self) -> Any:
        return torch.empty_like(self.tensors["x"])

    def call(self, tensors: dict[str, Any], out: Any, kernel: str) -> Any:
        return tilewright.rope(**tensors, inverse=self.case.inverse, out=out, kernel=kernel)


INPUTS = {
    "rotate_quantize": RotateQuantizeInputs,
    "dequantize_kv_rows": DequantizeInputs,
    "rope": RopeInputs,
}
