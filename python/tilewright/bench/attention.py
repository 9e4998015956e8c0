"""Attention's problems: one case, and the cases that a command line asks for."""

import argparse
import itertools
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tilewright.bench.case import Case, Errors
from tilewright.bench.inputs import AttentionInputs
from tilewright.bench.options import SWITCH, head_dims, numbers
from tilewright.bench.oracle import errors
from tilewright.bench.timing import CudaTimer

SIZE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
ERROR_LIMITS = {"fp32": 1e-5, "fp16": 1e-3, "bf16": 3e-3}

# The default sweep: the ladder's on a GPU, a small one on a CPU.
DEFAULTS = {
    "cuda": {"dtype": "bf16", "tokens": 16384, "hidden": 2048},
    "cpu": {"dtype": "fp32", "tokens": 2048, "hidden": 512},
}
RULES = {"samples": 20, "gap": 0.3}
SEQLENS = (512, 1024, 2048, 4096, 8192, 16384)

# The keys that every case has; features that are on add more.
PROBLEM = ("dtype", "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "v_dim", "causal")


def spread(count: int, shortest: int, longest: int) -> tuple[int, ...]:
    """Lengths in a geometric progression, in an order that is none."""
    ratio = (longest / shortest) ** (1 / (count - 1))
    lengths = [round(shortest * ratio**i) for i in range(count)]
    random.Random(0).shuffle(lengths)
    return tuple(lengths)


# Packed batches with the same tokens, within 0.01 %, and the same FLOPs, within 0.2 %.
PACKED = {"spread": spread(22, 80, 8000), "equal": (4478,) * 9}


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
    window: int | None = None  # keys to the left and, if not causal, to the right
    softcap: float = 0.0
    sinks: bool = False

    operation = "attention"

    @property
    def features(self) -> list[str]:
        """Those that are on, as the kernel table names them."""
        is_on = {
            "window": self.window is not None,
            "softcap": self.softcap > 0,
            "sinks": self.sinks,
            "packed": bool(self.lengths),
        }
        return [feature for feature, value in is_on.items() if value]

    @property
    def sides(self) -> tuple[int | None, int | None]:
        """How many keys a query sees to the left and to the right of its own; None: all."""
        return self.window, 0 if self.causal else self.window

    @property
    def window_size(self) -> tuple[int, int]:
        """The same as FlashAttention's functions take it; without a window, no limits."""
        left, right = self.sides
        return (-1, -1) if left is None else (left, right)

    @property
    def flops(self) -> float:
        pairs = sum(map(self._pairs, self.lengths, self.lengths))
        pairs = pairs or self.batch * self._pairs(self.q_len, self.kv_len)
        return 2.0 * self.heads * pairs * (self.head_dim + self.v_dim)

    def _pairs(self, q_len: int, kv_len: int) -> float:
        """Of queries and keys, nominally: half of all where causal, counted where that is wrong."""
        if self.window is None and (q_len == kv_len or not self.causal):
            return q_len * kv_len / (2 if self.causal else 1)
        left, right = (kv_len + q_len if side is None else side for side in self.sides)
        at = range(kv_len - q_len, kv_len)
        return sum(max(0, min(key + right + 1, kv_len) - max(key - left, 0)) for key in at)

    @property
    def compulsory_bytes(self) -> int:
        columns = self.head_dim + self.v_dim
        queries = self.q_len * self.heads * columns  # Q and O
        keys = self.kv_len * self.kv_heads * columns  # K and V
        return (1 if self.lengths else self.batch) * (queries + keys) * SIZE_BYTES[self.dtype]

    def to_json(self) -> dict[str, Any]:
        features = {
            "packed": {"lengths": list(self.lengths)},
            "window": {"window": [self.window, None if self.causal else self.window]},
            "softcap": {"softcap": self.softcap},
            "sinks": {"sinks": True},
        }
        fields = {name: getattr(self, name) for name in PROBLEM}
        for feature in self.features:
            fields |= features[feature]
        return fields

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
        elif self.kv_len != self.q_len:
            size += f" to {self.kv_len}"
        heads = "" if self.heads == self.kv_heads else f" {self.heads}:{self.kv_heads} heads"
        return f"{self.dtype} d={self.head_dims}{heads} {mask}{self._features_in_words} {size}"

    @property
    def _features_in_words(self) -> str:
        window = "" if self.window is None else f" window {self.window}"
        cap = f" cap {self.softcap:g}" if self.softcap else ""
        return f"{window}{cap}{' sinks' * self.sinks}"

    def arguments(self) -> str:
        device = self.device.partition(":")[0]
        return f"attention --device {device} --dtype {self.dtype} {self.problem_arguments}"

    @property
    def problem_arguments(self) -> str:
        """Those of problems(), the device aside."""
        size = f"--batch {self.batch} --seqlen {self.q_len} --kv-seqlen {self.kv_len}"
        if self.lengths:
            size = f"--lengths {','.join(map(str, self.lengths))}"
        return (
            f"--headdim {self.head_dims} --heads {self.heads} --kv-heads {self.kv_heads} "
            f"--causal {'on' if self.causal else 'off'} {size}{self._feature_arguments}"
        )

    @property
    def _feature_arguments(self) -> str:
        window = "" if self.window is None else f" --window {self.window}"
        cap = f" --softcap {self.softcap}" if self.softcap else ""
        return f"{window}{cap}{' --sinks' * self.sinks}"

    def make_inputs(self, seed: int) -> AttentionInputs:
        return AttentionInputs(self, seed)

    def errors(self, inputs: AttentionInputs, output: Any, lse: Any = None) -> Errors:
        return errors(self, inputs.expected, output, lse)

    def error_limit(self, inputs: AttentionInputs, is_ours: bool) -> float:
        return ERROR_LIMITS[self.dtype]


def _lengths(text: str) -> tuple[int, ...]:
    if text in PACKED:
        return PACKED[text]
    count, is_many, length = text.partition("x")
    return (int(length),) * int(count) if is_many else numbers(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_problem_arguments(parser)
    parser.add_argument("--dtype", choices=sorted(SIZE_BYTES))


def add_problem_arguments(parser: argparse.ArgumentParser) -> None:
    """All but the dtype."""
    parser.add_argument(
        "--headdim",
        type=head_dims,
        default="64,128,256",
        metavar="D,...",
        help="of Q and K, and of V where it differs: 192:128",
    )
    parser.add_argument("--seqlen", type=numbers, metavar="N,...", help="query and key lengths")
    parser.add_argument("--kv-seqlen", type=numbers, metavar="N,...", help="key lengths, if others")
    parser.add_argument("--tokens", type=int, help="batch x length")
    parser.add_argument("--batch", type=int, help="instead of --tokens")
    parser.add_argument(
        "--lengths",
        type=_lengths,
        nargs="+",
        default=[],
        metavar="N,...",
        help=f"packed batches instead: each its sequences' lengths, or so many of one length as "
        f"512x64, or {' or '.join(PACKED)}",
    )
    parser.add_argument("--hidden", type=int, help="heads x head dim")
    parser.add_argument("--heads", type=int, help="instead of --hidden")
    parser.add_argument("--kv-heads", type=numbers, metavar="H,...", help="if not all heads")
    parser.add_argument("--causal", choices=SWITCH, default="both")
    parser.add_argument(
        "--window",
        type=numbers,
        metavar="LEFT,...",
        help="so many keys to a query's left are seen, and as many to its right where not causal",
    )
    parser.add_argument("--softcap", type=float, default=0.0, help="of the scores; 0: none")
    parser.add_argument("--sinks", action="store_true", help="a random sink for each head")
    parser.add_argument("--flush-l2", action=argparse.BooleanOptionalAction, default=True)


def cuda_timer(args: argparse.Namespace, device: str) -> CudaTimer:
    return CudaTimer(device, "flush" if args.flush_l2 else None)


def cases(args: argparse.Namespace, device: str) -> Iterator[AttentionCase]:
    """The sweep, lengths innermost."""
    dtype = args.dtype or DEFAULTS[device.partition(":")[0]]["dtype"]
    return (AttentionCase(dtype=dtype, **fields) for fields in problems(args, device))


def problems(args: argparse.Namespace, device: str) -> Iterator[dict[str, Any]]:
    """The fields of each case but its dtype."""
    defaults = DEFAULTS[device.partition(":")[0]]
    hidden = args.hidden or defaults["hidden"]
    masks = SWITCH[args.causal]
    for head_dim, v_dim in args.headdim:
        heads = args.heads or max(1, hidden // head_dim)
        for kv_heads in args.kv_heads or (heads,):
            if heads % kv_heads:
                sys.exit(f"--kv-heads: {kv_heads} does not divide {heads} heads")
            for causal, window in itertools.product(masks, args.window or (None,)):
                for size in _sizes(args, defaults["tokens"]):
                    yield {
                        "heads": heads,
                        "kv_heads": kv_heads,
                        "head_dim": head_dim,
                        "v_dim": v_dim,
                        "causal": causal,
                        "device": device,
                        "window": window,
                        "softcap": args.softcap,
                        "sinks": args.sinks,
                        **size,
                    }


def _sizes(args: argparse.Namespace, default_tokens: int) -> Iterator[dict[str, Any]]:
    """What a case has of batch, lengths, and lengths of packed sequences."""
    for lengths in args.lengths:
        tokens = sum(lengths)
        yield {"batch": len(lengths), "q_len": tokens, "kv_len": tokens, "lengths": lengths}
    if args.lengths:
        return
    tokens = args.tokens or default_tokens
    for q_len in args.seqlen or [seqlen for seqlen in SEQLENS if seqlen <= tokens]:
        for kv_len in args.kv_seqlen or (q_len,):
            batch = args.batch or max(1, tokens // q_len)
            yield {"batch": batch, "q_len": q_len, "kv_len": kv_len}
