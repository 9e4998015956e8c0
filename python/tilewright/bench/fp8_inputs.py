"""Random rows for attention on FP8, in the forms that implementations take, and what they give."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

import tilewright
from tilewright.bench import oracle
from tilewright.bench.fp8 import ROW_DTYPE
from tilewright.bench.inputs import AttentionInputs
from tilewright.bench.tensors import normal, normal_with_outliers, sample

DESCALE_ROWS = 128


@dataclass(frozen=True)
class Form:
    """rotated  queries and keys are
    blocks   128 rows of a head share a descale; else all of a tensor
    transposed
             values are
    """

    rotated: bool
    blocks: bool
    transposed: bool = False

    @staticmethod
    def of(case: Any, own: "Form") -> "Form":
        """The case's, or where it has none, an implementation's own."""
        if case.descale is None:
            return own
        return Form(case.rotated, case.descale == "block", own.transposed)

    def to_json(self) -> dict[str, Any]:
        return {"rotated": self.rotated, "descale": "block" if self.blocks else "tensor"}


PER_TENSOR = Form(rotated=False, blocks=False)


@dataclass(frozen=True)
class Scaled:
    """A result in E4M3, which is so many times too large."""

    codes: Any
    scale: float

    def values(self) -> Any:
        return self.codes.double() / self.scale


class Fp8Inputs(AttentionInputs):
    """AttentionInputs in BF16, and arguments of attention_fp8() made of them."""

    def __init__(self, case: Any, seed: int):
        super().__init__(case, seed)
        self.seed = seed
        self.made: dict[Form, dict[str, Any]] = {}

    def _random(self, shapes: list[tuple[int, ...]], seed: int) -> list[Any]:
        make = normal_with_outliers if self.case.outliers else normal
        return make(shapes, ROW_DTYPE, self.case.device, seed)

    def quantized(self, form: Form) -> dict[str, Any]:
        """q, k, v or v_transposed, and their descales, each (1,) or of blocks."""
        if form not in self.made:
            seed = self.seed if form.rotated else None
            tensors = {}
            for name, x, options in (
                ("q", self.q, {"seed": seed}),
                ("k", self.k, {"seed": seed}),
                ("v", self.v, {"transposed": form.transposed}),
            ):
                codes, descale = (self._by_blocks if form.blocks else _by_tensor)(x, **options)
                is_transposed = name == "v" and form.transposed
                tensors["v_transposed" if is_transposed else name] = codes
                tensors[f"{name}_descale"] = descale
            self.made[form] = tensors
        return self.made[form]

    def _by_blocks(self, x: Any, **options: Any) -> tuple[Any, Any]:
        options |= {"descale_rows": DESCALE_ROWS, "cu_seqlens": self.cu_seqlens}
        return tilewright.rotate_quantize(x, **options)

    @cached_property
    def expected(self) -> oracle.Expected:
        """Of the rows before quantisation."""
        case = self.case
        rows = None
        if case.checked_rows:
            rows = sample(case.q_len, case.checked_rows, case.device, self.seed)
        return oracle.expect(case, self, rows)


def _by_tensor(x: Any, **options: Any) -> tuple[Any, Any]:
    """The descale is that of the block with the largest one: no element saturates."""
    sequences = x if x.ndim == 4 else x[None]
    _, descales = tilewright.rotate_quantize(sequences, **options)
    descale = torch.amax(descales).reshape(1)
    codes = tilewright.rotate_quantize(sequences, fixed_descale=descale, **options)
    return codes if x.ndim == 4 else codes[0], descale
