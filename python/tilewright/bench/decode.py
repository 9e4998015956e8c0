"""Problems of attention over KV caches: one case, and the cases that a command line asks for."""

import argparse
import itertools
import pathlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tilewright.bench.attention import PROBLEM, AttentionCase, spread
from tilewright.bench.case import Errors
from tilewright.bench.decode_inputs import KvCacheInputs
from tilewright.bench.options import SWITCH, head_dims, numbers
from tilewright.bench.oracle import errors
from tilewright.bench.timing import CudaTimer, add_timed_argument, bytes_between, timer_of

SIZE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "e4m3": 1}
ERROR_LIMITS = {"fp32": 1e-5, "fp16": 1e-3, "bf16": 3e-3}
E4M3_PEER_ERROR_LIMIT = 0.1  # of implementations that compute in E4M3, too

# The default sweep: a large model's heads on a GPU, a small one's on a CPU.
DEFAULTS = {
    "cuda": {
        "dtype": "bf16",
        "heads": 32,
        "kv_heads": (8, 1),
        "headdim": [(128, 128)],
        "batch": (1, 8, 64, 128),
        "kv_seqlen": (1024, 8192, 65536),
    },
    "cpu": {
        "dtype": "fp32",
        "heads": 8,
        "kv_heads": (2,),
        "headdim": [(64, 64)],
        "batch": (1, 3),
        "kv_seqlen": (100, 1000),
    },
}
RULES = {"samples": 20, "gap": 0.02}

Batch = tuple[tuple[int, int], ...]  # (new tokens, keys) of each sequence

# Decode beside chunks of prompts, and the two by themselves.
BATCHES: dict[str, Batch] = {
    "mixed-decode": ((1, 8192),) * 60,
    "mixed-prefill": ((512, 8704),) * 4,
    "mixed": ((1, 8192),) * 60 + ((512, 8704),) * 4,
}
ZIPF_RANGE = (64, 65536)


@dataclass(frozen=True)
class KvCacheCase(AttentionCase):
    """lengths  of the new tokens of each sequence, where they differ; q_len is then their sum
    kv_len   the most keys of a sequence, which is its place in a contiguous cache
    kv_lens  how many each has, where they differ
    shared_prefix
             the first keys, which all sequences have in the same pages; 0: none
    names_prefix
             a call says so: a kernel may read them once
    """

    kv_lens: tuple[int, ...] = ()
    cache_dtype: str = "bf16"  # e4m3 where Q is
    page_size: int = 0  # 0: caches are contiguous
    descale: str = "tensor"  # of an E4M3 cache: one for all, or for each "head" or "token"
    batch_invariant: bool = False
    shared_prefix: int = 0
    names_prefix: bool = False
    between_bytes: int = 0  # the least that is read between two reads of a cache

    operation = "attention_with_kvcache"

    @property
    def out_dtype(self) -> str:
        return "bf16" if self.dtype == "e4m3" else self.dtype

    @property
    def features(self) -> list[str]:
        cache = {
            "e4m3 cache": self.cache_dtype == "e4m3",
            "row descales": self.descale == "token",
            "prefix_groups": self.names_prefix,
        }
        return super().features + [feature for feature, is_on in cache.items() if is_on]

    @property
    def sequences(self) -> Batch:
        q_lens = self.lengths or (self.q_len,) * self.batch
        return tuple(zip(q_lens, self.kv_lens or (self.kv_len,) * self.batch, strict=True))

    @property
    def most_new(self) -> int:
        """Tokens of a sequence."""
        return max(self.lengths, default=self.q_len)

    @property
    def flops(self) -> float:
        pairs = sum(count * self._pairs(*lens) for lens, count in _counts(self.sequences).items())
        return 2.0 * self.heads * pairs * (self.head_dim + self.v_dim)

    @property
    def kv_bytes(self) -> int:
        """Of the keys that any query sees, and of their values."""
        keys = sum(self._seen_keys(*lens) for lens in self.sequences)
        if self.names_prefix:
            keys -= (self.batch - 1) * self.shared_prefix
        of_key = (self.head_dim + self.v_dim) * SIZE_BYTES[self.cache_dtype]
        of_descales = 2 * SIZE_BYTES["fp32"] if self.descale == "token" else 0
        return keys * self.kv_heads * (of_key + of_descales)

    def _seen_keys(self, q_len: int, kv_len: int) -> int:
        left, _ = self.sides
        return kv_len if left is None else min(kv_len, left + q_len)

    @property
    def compulsory_bytes(self) -> int:
        rows = (1 if self.lengths else self.batch) * self.q_len * self.heads  # of Q and O
        of_q, of_o = self.head_dim * SIZE_BYTES[self.dtype], self.v_dim * SIZE_BYTES[self.out_dtype]
        return self.kv_bytes + rows * (of_q + of_o)

    def to_json(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in (*PROBLEM, "cache_dtype", "page_size")}
        features = {
            "q_lens": list(self.lengths),
            "kv_lens": list(self.kv_lens),
            "window": self.window is not None
            and [self.window, None if self.causal else self.window],
            "softcap": self.softcap,
            "sinks": self.sinks,
            "descale": self.descale != "tensor" and self.descale,
            "batch_invariant": self.batch_invariant,
            "shared_prefix": self.shared_prefix,
            "names_prefix": self.names_prefix,
        }
        return fields | {name: value for name, value in features.items() if value}

    @property
    def label(self) -> str:
        new = f"{sum(q_len for q_len, _ in self.sequences)} new in {self.batch}"
        shortest = min(self.kv_lens, default=self.kv_len)
        keys = f"{self.kv_len}" if shortest == self.kv_len else f"{shortest} to {self.kv_len}"
        cache = "" if self.cache_dtype == self.dtype else f" {self.cache_dtype} cache"
        cache += f" pages of {self.page_size}" if self.page_size else ""
        invariant = " batch-invariant" * self.batch_invariant
        if self.shared_prefix:
            cache += f" prefix of {self.shared_prefix}" + " named" * self.names_prefix
        return (
            f"{self.dtype}{cache} d={self.head_dims} {self.heads}:{self.kv_heads} heads"
            f"{self._features_in_words}{invariant} {new}, {keys} keys"
        )

    def arguments(self) -> str:
        size = f"--batch {self.batch} --seqlen {self.q_len} --kv-seqlen {self.kv_len}"
        if self.lengths or self.kv_lens:
            size = f"--sequences {_batch_text(self.sequences)}"
        return (
            f"decode --device {self.device.partition(':')[0]} --dtype {self.dtype} "
            f"--cache-dtype {self.cache_dtype} --descale {self.descale} "
            f"--page-size {self.page_size} --headdim {self.head_dims} --heads {self.heads} "
            f"--kv-heads {self.kv_heads} --causal {'on' if self.causal else 'off'} "
            f"--batch-invariant {'on' if self.batch_invariant else 'off'} "
            f"--shared-prefix {self.shared_prefix} "
            f"--names-prefix {'on' if self.names_prefix else 'off'} "
            f"{size}{self._feature_arguments}"
        )

    def make_inputs(self, seed: int) -> KvCacheInputs:
        return KvCacheInputs(self, seed)

    def errors(self, inputs: KvCacheInputs, output: Any, lse: Any = None) -> Errors:
        """Of the worst sequence: results of long ones are small beside those of short ones."""
        return errors(self, inputs.expected, output, lse, of_worst_sequence=True)

    def error_limit(self, inputs: KvCacheInputs, is_ours: bool) -> float:
        if self.cache_dtype == "e4m3" and not is_ours:
            return E4M3_PEER_ERROR_LIMIT
        return ERROR_LIMITS[self.out_dtype]


def _counts(batch: Batch) -> dict[tuple[int, int], int]:
    return {lens: batch.count(lens) for lens in set(batch)}


def _batch_text(batch: Batch) -> str:
    """As _batch() reads it."""
    runs = [(lens, len(list(run))) for lens, run in itertools.groupby(batch)]
    return ",".join(f"{count}x{new}@{keys}" for (new, keys), count in runs)


def _batch(text: str) -> Batch:
    """Zipf's lengths have a density in proportion to 1 / length: equal shares of their logarithm.
    The even batch has as many keys."""
    if text in BATCHES:
        return BATCHES[text]
    if named := re.fullmatch(r"(zipf|even)(\d+)", text):
        count = int(named[2])
        keys = spread(count, *ZIPF_RANGE)
        if named[1] == "even":
            keys = (round(sum(keys) / count),) * count
        return tuple((1, length) for length in keys)
    runs = []
    for run in text.split(","):
        found = re.fullmatch(r"(?:(\d+)x)?(\d+)@(\d+)", run)
        if not found:
            raise argparse.ArgumentTypeError(f"{text}: {run} must be COUNTxNEW@KEYS")
        runs += [(int(found[2]), int(found[3]))] * int(found[1] or 1)
    return tuple(runs)


def _sizes_of(batch: Batch) -> dict[str, Any]:
    """What a case has of a batch, lengths, and lengths where they differ."""
    q_lens, kv_lens = zip(*batch, strict=True)
    is_packed, is_ragged = len(set(q_lens)) > 1, len(set(kv_lens)) > 1
    return {
        "batch": len(batch),
        "q_len": sum(q_lens) if is_packed else q_lens[0],
        "lengths": q_lens if is_packed else (),
        "kv_len": max(kv_lens),
        "kv_lens": kv_lens if is_ragged else (),
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch", type=numbers, metavar="B,...", help="sequences")
    parser.add_argument("--seqlen", type=numbers, default="1", metavar="N,...", help="new tokens")
    parser.add_argument("--kv-seqlen", type=numbers, metavar="N,...", help="keys, the new included")
    parser.add_argument(
        "--sequences",
        type=_batch,
        nargs="+",
        default=[],
        metavar="COUNTxNEW@KEYS,...",
        help=f"batches instead, whose sequences have so many new tokens and keys; "
        f"zipfCOUNT: keys by Zipf's law from {ZIPF_RANGE[0]} to {ZIPF_RANGE[1]}, evenCOUNT: "
        f"as many keys, each sequence the same; {', '.join(BATCHES)}",
    )
    parser.add_argument("--heads", type=int)
    parser.add_argument("--kv-heads", type=numbers, metavar="H,...")
    parser.add_argument("--headdim", type=head_dims, metavar="D,...", help="192:128: V's differs")
    parser.add_argument(
        "--dtype",
        choices=sorted(SIZE_BYTES),
        help="of Q and the result, which is bf16 where Q is e4m3",
    )
    parser.add_argument(
        "--cache-dtype",
        type=lambda text: text.split(","),
        metavar="DTYPE,...",
        help="of K and V: that of Q, or e4m3",
    )
    parser.add_argument(
        "--descale",
        choices=("tensor", "head", "token"),
        default="tensor",
        help="of E4M3 caches: one for each of these",
    )
    parser.add_argument(
        "--page-size", type=numbers, default="0", metavar="N,...", help="rows; 0: contiguous"
    )
    parser.add_argument("--causal", choices=SWITCH, default="on")
    parser.add_argument("--window", type=int, metavar="LEFT", help="as of attention")
    parser.add_argument("--softcap", type=float, default=0.0, help="of the scores; 0: none")
    parser.add_argument("--sinks", action="store_true", help="a random sink for each head")
    parser.add_argument(
        "--batch-invariant",
        choices=SWITCH,
        default="off",
        help="bits of a sequence do not depend on the others",
    )
    parser.add_argument(
        "--shared-prefix",
        type=int,
        default=0,
        metavar="KEYS",
        help="so many first keys lie in the same pages for all sequences; 0: none",
    )
    parser.add_argument(
        "--names-prefix",
        choices=SWITCH,
        default="off",
        help="a call says which keys they are, so that they may be read once",
    )
    parser.add_argument(
        "--xqa", type=pathlib.Path, metavar="FOLDER", help="race the libraries of tools/xqa.py, too"
    )
    add_timed_argument(parser, default="graph")


def cuda_timer(args: argparse.Namespace, device: str) -> CudaTimer:
    return timer_of(args.timed, device, "rotation")


def cases(args: argparse.Namespace, device: str) -> Iterator[KvCacheCase]:
    """The sweep, with all caches of a size side by side."""
    defaults = DEFAULTS[device.partition(":")[0]]
    dtype, heads = args.dtype or defaults["dtype"], args.heads or defaults["heads"]
    for kv_heads in args.kv_heads or defaults["kv_heads"]:
        if heads % kv_heads:
            sys.exit(f"--kv-heads: {kv_heads} does not divide {heads} heads")
        for (head_dim, v_dim), causal, size, cache in itertools.product(
            args.headdim or defaults["headdim"],
            SWITCH[args.causal],
            list(_sizes(args, defaults)),
            list(_caches(args, dtype)),
        ):
            if _keys_before(size) < args.shared_prefix:
                sys.exit(
                    f"--shared-prefix: is {args.shared_prefix}, must be at most the keys before "
                    f"the new ones, {_keys_before(size)}"
                )
            yield KvCacheCase(
                dtype=dtype,
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                v_dim=v_dim,
                causal=causal,
                device=device,
                window=args.window,
                softcap=args.softcap,
                sinks=args.sinks,
                between_bytes=bytes_between(device),
                **size,
                **cache,
            )


def _keys_before(size: dict[str, Any]) -> int:
    """The fewest keys ahead of a sequence's new ones."""
    kv_lens = size.get("kv_lens") or (size["kv_len"],)
    return min(kv_lens) - max(size.get("lengths") or (size["q_len"],))


def _caches(args: argparse.Namespace, dtype: str) -> Iterator[dict[str, Any]]:
    """What a case has of the caches and of how they are read."""
    cache_dtypes = args.cache_dtype or [dtype]
    names_prefix = SWITCH[args.names_prefix]
    if any(names_prefix) and not args.shared_prefix:
        sys.exit("--names-prefix: is on, must be off without --shared-prefix")
    for cache_dtype, page_size, batch_invariant, is_named in itertools.product(
        cache_dtypes, args.page_size, SWITCH[args.batch_invariant], names_prefix
    ):
        if cache_dtype not in (dtype, "e4m3"):
            sys.exit(f"--cache-dtype: is {cache_dtype}, must be e4m3 or --dtype {dtype}")
        if args.shared_prefix and (page_size == 0 or args.shared_prefix % page_size):
            sys.exit(
                f"--shared-prefix: is {args.shared_prefix}, must be a multiple of --page-size, "
                f"which is {page_size}"
            )
        yield {
            "cache_dtype": cache_dtype,
            "page_size": page_size,
            "descale": args.descale if cache_dtype == "e4m3" else "tensor",
            "batch_invariant": batch_invariant,
            "shared_prefix": args.shared_prefix,
            "names_prefix": is_named,
        }


def _sizes(args: argparse.Namespace, defaults: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if args.sequences:
        yield from map(_sizes_of, args.sequences)
        return
    lengths = args.seqlen, args.kv_seqlen or defaults["kv_seqlen"]
    for batch, q_len, kv_len in itertools.product(args.batch or defaults["batch"], *lengths):
        yield {"batch": batch, "q_len": q_len, "kv_len": kv_len}
