"""Attention's problems: the sweep, random inputs, a float64 check."""

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tilewright.bench.case import Case

SIZE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
LIBRARY_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
ERROR_LIMITS = {"fp32": 1e-5, "fp16": 1e-3, "bf16": 3e-3}

# The sweep where nothing else is asked for: the ladder's on a GPU, a small one on a CPU.
DEFAULTS = {
    "cuda": {"dtype": "bf16", "tokens": 16384, "hidden": 2048},
    "cpu": {"dtype": "fp32", "tokens": 2048, "hidden": 512},
}
SEQLENS = (512, 1024, 2048, 4096, 8192, 16384)

CHECKED_HEADS = 2
CHECKED_ROWS = 256


@dataclass(frozen=True)
class AttentionInputs:
    q: Any  # (batch, q_len, heads, head_dim), of PyTorch, or of NumPy where that is missing
    k: Any  # (batch, kv_len, kv_heads, head_dim)
    v: Any  # (batch, kv_len, kv_heads, v_dim)


@dataclass(frozen=True)
class AttentionCase(Case):
    dtype: str
    batch: int
    q_len: int
    kv_len: int
    heads: int
    kv_heads: int
    head_dim: int
    v_dim: int
    causal: bool
    device: str

    operation = "attention"

    @property
    def flops(self) -> float:
        columns = self.head_dim + self.v_dim
        full = 2.0 * self.batch * self.heads * self.q_len * self.kv_len * columns
        return full / 2 if self.causal else full

    @property
    def compulsory_bytes(self) -> int:
        columns = self.head_dim + self.v_dim
        queries = self.q_len * self.heads * columns  # Q and O
        keys = self.kv_len * self.kv_heads * columns  # K and V
        return self.batch * (queries + keys) * SIZE_BYTES[self.dtype]

    @property
    def error_limit(self) -> float:
        return ERROR_LIMITS[self.dtype]

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "device"}

    @property
    def label(self) -> str:
        mask = "causal" if self.causal else "full"
        return f"{self.dtype} d={self.head_dim} {mask} {self.batch}x{self.q_len}"

    def arguments(self) -> str:
        return (
            f"attention --device {self.device.partition(':')[0]} --dtype {self.dtype} "
            f"--seqlen {self.q_len} --headdim {self.head_dim} --tokens {self.batch * self.q_len} "
            f"--hidden {self.heads * self.head_dim} --causal {'on' if self.causal else 'off'}"
        )

    def make_inputs(self, seed: int) -> AttentionInputs:
        shapes = (
            (self.batch, self.q_len, self.heads, self.head_dim),
            (self.batch, self.kv_len, self.kv_heads, self.head_dim),
            (self.batch, self.kv_len, self.kv_heads, self.v_dim),
        )
        normal = _torch_normal if "torch" in sys.modules else _numpy_normal
        return AttentionInputs(*normal(shapes, self.dtype, self.device, seed))

    def errors(self, inputs: AttentionInputs, output: Any) -> tuple[float, float]:
        """Of a few rows of the first batch's first and last heads, against all their keys."""
        import numpy

        count = min(CHECKED_ROWS, self.q_len)
        rows = numpy.unique(numpy.linspace(0, self.q_len - 1, count).astype(int))
        difference, norm, largest = 0.0, 0.0, 0.0
        for head in sorted({0, self.heads - 1})[:CHECKED_HEADS]:
            kv_head = head // (self.heads // self.kv_heads)
            q, o = _to_float64(inputs.q[0, :, head])[rows], _to_float64(output[0, :, head])[rows]
            k, v = _to_float64(inputs.k[0, :, kv_head]), _to_float64(inputs.v[0, :, kv_head])
            expected = _reference(q, k, v, rows + self.kv_len - self.q_len if self.causal else None)
            difference += float(((o - expected) ** 2).sum())
            norm += float((expected**2).sum())
            largest = max(largest, float(abs(o - expected).max()))
        return math.sqrt(difference / norm) if norm else math.sqrt(difference), largest


def _reference(q: Any, k: Any, v: Any, last_keys: Any) -> Any:
    """One head in float64; row i sees keys up to last_keys[i], or all of them."""
    import numpy

    scores = q @ k.T / math.sqrt(q.shape[1])
    if last_keys is not None:
        scores[numpy.arange(len(k)) > last_keys[:, None]] = -numpy.inf
    largest = scores.max(axis=1, keepdims=True)
    weights = numpy.exp(scores - numpy.where(numpy.isfinite(largest), largest, 0.0))
    total = weights.sum(axis=1, keepdims=True)
    return weights @ v / numpy.where(total == 0, 1.0, total)


def _to_float64(tensor: Any) -> Any:
    if hasattr(tensor, "cpu"):
        return tensor.double().cpu().numpy()
    return tensor.astype("float64")


def _torch_normal(shapes: Any, dtype: str, device: str, seed: int) -> list[Any]:
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    torch_dtype = getattr(torch, LIBRARY_DTYPES[dtype])
    return [
        torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(torch_dtype)
        for shape in shapes
    ]


def _numpy_normal(shapes: Any, dtype: str, device: str, seed: int) -> list[Any]:
    import numpy

    if dtype == "bf16":
        import ml_dtypes  # noqa: F401  (it gives NumPy the dtype)
    generator = numpy.random.default_rng(seed)
    return [
        generator.standard_normal(shape, numpy.float32).astype(LIBRARY_DTYPES[dtype])
        for shape in shapes
    ]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--headdim", type=_numbers, default=[64, 128, 256], metavar="D,...")
    parser.add_argument("--seqlen", type=_numbers, metavar="N,...", help="query and key lengths")
    parser.add_argument("--tokens", type=int, help="batch x length")
    parser.add_argument("--hidden", type=int, help="heads x head dim")
    parser.add_argument("--causal", choices=("off", "on", "both"), default="both")
    parser.add_argument("--dtype", choices=sorted(SIZE_BYTES))


def cases(args: argparse.Namespace, device: str) -> Iterator[AttentionCase]:
    """The sweep, lengths innermost."""
    defaults = DEFAULTS[device.partition(":")[0]]
    dtype = args.dtype or defaults["dtype"]
    tokens = args.tokens or defaults["tokens"]
    hidden = args.hidden or defaults["hidden"]
    seqlens = args.seqlen or [seqlen for seqlen in SEQLENS if seqlen <= tokens]
    for head_dim in args.headdim:
        for causal in {"off": (False,), "on": (True,), "both": (False, True)}[args.causal]:
            for seqlen in seqlens:
                yield AttentionCase(
                    dtype=dtype,
                    batch=max(1, tokens // seqlen),
                    q_len=seqlen,
                    kv_len=seqlen,
                    heads=max(1, hidden // head_dim),
                    kv_heads=max(1, hidden // head_dim),
                    head_dim=head_dim,
                    v_dim=head_dim,
                    causal=causal,
                    device=device,
                )
