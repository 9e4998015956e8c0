"""Random rows for attention on FP8, in the forms that implementations take, and what they give."""

from collections.abc import Iterator
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


@dataclass(frozen=True)
class LseOf:
    """An LSE of queries and keys in this form."""

    values: Any
    form: Form


class Fp8Inputs(AttentionInputs):
    """AttentionInputs in BF16, and arguments of attention_fp8() made of them."""

    def __init__(self, case: Any, seed: int):
        super().__init__(case, seed)
        self.seed = seed
        self.made: dict[Form, dict[str, Any]] = {}
        self.lses: dict[tuple[bool, bool], list[Any]] = {}

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
                quantize = self._by_blocks if form.blocks else self._by_tensor
                codes, descale = quantize(x, **options)
                is_transposed = name == "v" and form.transposed
                tensors["v_transposed" if is_transposed else name] = codes
                tensors[f"{name}_descale"] = descale
            self.made[form] = tensors
        return self.made[form]

    def _by_blocks(self, x: Any, **options: Any) -> tuple[Any, Any]:
        options |= {"descale_rows": DESCALE_ROWS, "cu_seqlens": self.cu_seqlens}
        return tilewright.rotate_quantize(x, **options)

    def _by_tensor(self, x: Any, **options: Any) -> tuple[Any, Any]:
        """The descale is that of the block with the largest one: no element saturates."""
        _, descales = tilewright.rotate_quantize(x if x.ndim == 4 else x[None], **options)
        descale = torch.amax(descales).reshape(1)
        options |= {"fixed_descale": descale, "cu_seqlens": self.cu_seqlens}
        return tilewright.rotate_quantize(x, **options), descale

    @cached_property
    def expected(self) -> oracle.Expected:
        """Of the rows before quantisation."""
        return oracle.expect(self.case, self, self._rows)

    def expected_lses(self, form: Form) -> list[Any]:
        """Of the queries and keys that the bytes stand for."""
        known = (form.rotated, form.blocks)
        if known not in self.lses:
            self.lses[known] = oracle.expect(self.case, _Dequantized(self, form), self._rows).lses
        return self.lses[known]

    @cached_property
    def _rows(self) -> Any:
        case = self.case
        if not case.checked_rows:
            return None
        return sample(case.q_len, case.checked_rows, case.device, self.seed)


@dataclass(frozen=True)
class _Dequantized:
    """What the oracle asks of inputs. LSEs do not depend on values, so that one column does."""

    inputs: Fp8Inputs
    form: Form

    @property
    def sinks(self) -> Any:
        return self.inputs.sinks

    def sequences(self) -> Iterator[tuple[Any, Any, Any]]:
        values = (v[..., :1] for _, _, v in self.inputs.sequences())
        return zip(self._values("q"), self._values("k"), values, strict=True)

    def _values(self, name: str) -> Iterator[Any]:
        case, made = self.inputs.case, self.inputs.quantized(self.form)
        descales = made[f"{name}_descale"].double()
        begin = 0
        for i, codes in enumerate(oracle.by_sequence(case, made[name], axis=0)):
            scale = descales
            if self.form.blocks:  # (heads, blocks) of the sequence, or of all that are packed
                first = begin // DESCALE_ROWS + i if case.lengths else 0
                of_blocks = (descales if case.lengths else descales[i])[:, first:]
                scale = of_blocks.repeat_interleave(DESCALE_ROWS, 1)[:, : len(codes)].T[..., None]
            yield codes.double() * scale
            begin += len(codes)
