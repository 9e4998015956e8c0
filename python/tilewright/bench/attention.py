"""Attention's problems: one case, and the cases that a command line asks for."""

import argparse
import random
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tilewright.bench.case import Case
from tilewright.bench.inputs import AttentionInputs, make_inputs
from tilewright.bench.options import numbers
from tilewright.bench.oracle import errors
from tilewright.bench.timing import CudaTimer

SIZE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
ERROR_LIMITS = {"fp32": 1e-5, "fp16": 1e-3, "bf16": 3e-3}

# The sweep where nothing else is asked for: the ladder's on a GPU, a small one on a CPU.
DEFAULTS = {
    "cuda": {"dtype": "bf16", "tokens": 16384, "hidden": 2048},
    "cpu": {"dtype": "fp32", "tokens": 2048, "hidden": 512},
}
RULES = {"samples": 20, "gap": 0.3}
SEQLENS = (512, 1024, 2048, 4096, 8192, 16384)


def _spread(count: int, shortest: int, longest: int) -> tuple[int, ...]:
    """Lengths in a geometric progression, in an order that is none."""
    ratio = (longest / shortest) ** (1 / (count - 1))
    lengths = [round(shortest * ratio**i) for i in range(count)]
    random.Random(0).shuffle(lengths)
    return tuple(lengths)


# Packed batches of the same tokens, within 0.01 %, and the same FLOPs, within 0.2 %.
PACKED = {"spread": _spread(22, 80, 8000), "equal": (4478,) * 9}


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
    lengths: tuple[int, ...] = ()  # of packed sequences; q_len and kv_len are then their sum

    operation = "attention"

    @property
    def flops(self) -> float:
        pairs = sum(length**2 for length in self.lengths) or self.batch * self.q_len * self.kv_len
        full = 2.0 * self.heads * pairs * (self.head_dim + self.v_dim)
        return full / 2 if self.causal else full

    @property
    def compulsory_bytes(self) -> int:
        columns = self.head_dim + self.v_dim
        queries = self.q_len * self.heads * columns  # Q and O
        keys = self.kv_len * self.kv_heads * columns  # K and V
        return (1 if self.lengths else self.batch) * (queries + keys) * SIZE_BYTES[self.dtype]

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        del fields["device"]
        lengths = fields.pop("lengths")
        return fields | ({"lengths": list(lengths)} if lengths else {})

    @property
    def head_dims(self) -> str:
        same = self.head_dim == self.v_dim
        return f"{self.head_dim}" if same else f"{self.head_dim}:{self.v_dim}"

    @property
    def label(self) -> str:
        mask = "causal" if self.causal else "full"
        size = f"{self.batch}x{self.q_len}"
        if self.lengths:
            size = f"{self.batch} of {min(self.lengths)} to {max(self.lengths)}"
        heads = "" if self.heads == self.kv_heads else f" {self.heads}:{self.kv_heads} heads"
        return f"{self.dtype} d={self.head_dims}{heads} {mask} {size}"

    def arguments(self) -> str:
        size = f"--batch {self.batch} --seqlen {self.q_len}"
        if self.lengths:
            size = f"--lengths {','.join(map(str, self.lengths))}"
        return (
            f"attention --device {self.device.partition(':')[0]} --dtype {self.dtype} "
            f"--headdim {self.head_dims} --heads {self.heads} --kv-heads {self.kv_heads} "
            f"--causal {'on' if self.causal else 'off'} {size}"
        )

    def make_inputs(self, seed: int) -> AttentionInputs:
        return make_inputs(self, seed)

    def errors(self, inputs: AttentionInputs, output: Any) -> tuple[float, float]:
        return errors(self, inputs, output)

    def error_limit(self, inputs: AttentionInputs, is_ours: bool) -> float:
        return ERROR_LIMITS[self.dtype]


def _head_dims(text: str) -> list[tuple[int, int]]:
    pairs = [dims.partition(":") for dims in text.split(",")]
    return [(int(qk), int(v or qk)) for qk, _, v in pairs]


def _lengths(text: str) -> tuple[int, ...]:
    return PACKED[text] if text in PACKED else numbers(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--headdim",
        type=_head_dims,
        default="64,128,256",
        metavar="D,...",
        help="of Q and K, and of V where it differs: 192:128",
    )
    parser.add_argument("--seqlen", type=numbers, metavar="N,...", help="query and key lengths")
    parser.add_argument("--tokens", type=int, help="batch x length")
    parser.add_argument("--batch", type=int, help="instead of --tokens")
    parser.add_argument(
        "--lengths",
        type=_lengths,
        nargs="+",
        default=[],
        metavar="N,...",
        help=f"packed batches instead: each its sequences' lengths, or {' or '.join(PACKED)}",
    )
    parser.add_argument("--hidden", type=int, help="heads x head dim")
    parser.add_argument("--heads", type=int, help="instead of --hidden")
    parser.add_argument("--kv-heads", type=numbers, metavar="H,...", help="if not all heads")
    parser.add_argument("--causal", choices=("off", "on", "both"), default="both")
    parser.add_argument("--dtype", choices=sorted(SIZE_BYTES))
    parser.add_argument("--flush-l2", action=argparse.BooleanOptionalAction, default=True)


def cuda_timer(args: argparse.Namespace, device: str) -> CudaTimer:
    return CudaTimer(device, "flush" if args.flush_l2 else None)


def cases(args: argparse.Namespace, device: str) -> Iterator[AttentionCase]:
    """The sweep, lengths innermost."""
    defaults = DEFAULTS[device.partition(":")[0]]
    hidden = args.hidden or defaults["hidden"]
    for head_dim, v_dim in args.headdim:
        heads = args.heads or max(1, hidden // head_dim)
        for kv_heads in args.kv_heads or (heads,):
            if heads % kv_heads:
                sys.exit(f"--kv-heads: {kv_heads} does not divide {heads} heads")
            for causal in {"off": (False,), "on": (True,), "both": (False, True)}[args.causal]:
                for batch, seqlen, lengths in _batches(args, defaults["tokens"]):
                    yield AttentionCase(
                        dtype=args.dtype or defaults["dtype"],
                        batch=batch,
                        q_len=seqlen,
                        kv_len=seqlen,
                        heads=heads,
                        kv_heads=kv_heads,
                        head_dim=head_dim,
                        v_dim=v_dim,
                        causal=causal,
                        device=device,
                        lengths=lengths,
                    )


def _batches(
    args: argparse.Namespace, default_tokens: int
) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """(batch, length, lengths of packed sequences)"""
    if args.lengths:
        yield from ((len(lengths), sum(lengths), lengths) for lengths in args.lengths)
        return
    tokens = args.tokens or default_tokens
    for seqlen in args.seqlen or [seqlen for seqlen in SEQLENS if seqlen <= tokens]:
        yield args.batch or max(1, tokens // seqlen), seqlen, ()
