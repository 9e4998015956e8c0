"""Problems of DeepSeek-V4's attention: one case, and the cases that a command line asks for."""

import argparse
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.bench import oracle
from tilewright.bench.case import Case, Errors
from tilewright.bench.options import SWITCH, numbers, words_of
from tilewright.bench.timing import CudaTimer, add_timed_argument, bytes_between, timer_of

if TYPE_CHECKING:
    from tilewright.bench.dsv4_inputs import Dsv4Inputs

DIM = 512
ROW_BYTES = {"bf16": 1024, "e4m3_bf16": 584, "e4m3": 528, "e2m1": 288}
SIZE_BYTES = {"fp32": 4, "bf16": 2}
ERROR_LIMITS = {"fp32": 1e-5, "bf16": 3e-3}

# The default sweep: Flash's heads and keys on a GPU, a small problem on a CPU.
DEFAULTS = {
    "cuda": {
        "dtype": "bf16",
        "heads": (64,),
        "keys": [(128, 512)],
        "batch": (1, 8, 32, 128),
        "context": 4096,
    },
    "cpu": {"dtype": "fp32", "heads": (8,), "keys": [(16, 20)], "batch": (1, 3), "context": 100},
}
RULES = {"samples": 20, "gap": 0.02}


@dataclass(frozen=True)
class Dsv4Case(Case):
    """window, compressed
             keys of a token in each scope; 0: there is no such scope
    context  rows that a request has in the compressed cache, of which its lists are some
    """

    dtype: str
    batch: int
    q_len: int
    heads: int
    window: int
    compressed: int
    device: str
    window_rows: str = "e4m3_bf16"
    compressed_rows: str = "e4m3_bf16"
    window_page_size: int = 64
    compressed_page_size: int = 64
    compressed_keys: str = "list"  # or "range": the first ones
    context: int = 0
    sinks: bool = True
    inverse_rope: bool = False
    between_bytes: int = 0  # the least that is read between two reads of a cache

    operation = "dsv4_attention"
    lengths = ()  # no packed tokens, as the oracle asks

    @property
    def features(self) -> list[str]:
        is_range = self.window > 0 or (self.compressed > 0 and self.compressed_keys == "range")
        has = {
            "range_end": is_range,
            "indices": self.compressed > 0 and self.compressed_keys == "list",
            "sinks": self.sinks,
            "inverse rope": self.inverse_rope,
        }
        return [feature for feature, is_on in has.items() if is_on]

    @property
    def tokens(self) -> int:
        return self.batch * self.q_len

    @property
    def flops(self) -> float:
        return 4.0 * self.heads * DIM * self.tokens * (self.window + self.compressed)

    @property
    def kv_bytes(self) -> int:
        """Of the rows that are seen, each once for a request; of lists, once for a token."""
        window = self.batch * (self.window + self.q_len - 1) if self.window else 0
        lists = self.tokens if self.compressed_keys == "list" else self.batch
        return (
            window * ROW_BYTES[self.window_rows]
            + lists * self.compressed * ROW_BYTES[self.compressed_rows]
        )

    @property
    def compulsory_bytes(self) -> int:
        return self.kv_bytes + 2 * self.tokens * self.heads * DIM * SIZE_BYTES[self.dtype]

    def to_json(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in ("dtype", "batch", "q_len", "heads")}
        for scope in ("window", "compressed"):
            has_scope = getattr(self, scope) > 0
            names = (scope, *((f"{scope}_rows", f"{scope}_page_size") if has_scope else ()))
            fields |= {name: getattr(self, name) for name in names}
        if self.compressed:
            fields |= {"compressed_keys": self.compressed_keys, "context": self.context}
        return fields | {"sinks": self.sinks, "inverse_rope": self.inverse_rope}

    @property
    def label(self) -> str:
        scopes = [
            f"{name} {keys} {rows}"
            for name, keys, rows in (
                ("window", self.window, self.window_rows),
                (self.compressed_keys, self.compressed, self.compressed_rows),
            )
            if keys
        ]
        rope = ", inverse rope" * self.inverse_rope
        return f"{self.dtype} b{self.batch} q{self.q_len} h{self.heads}, {', '.join(scopes)}{rope}"

    def arguments(self) -> str:
        return (
            f"dsv4 --device {self.device.partition(':')[0]} --dtype {self.dtype} "
            f"--batch {self.batch} --seqlen {self.q_len} --heads {self.heads} "
            f"--keys {self.window}+{self.compressed} --context {self.context} "
            f"--window-rows {self.window_rows} --rows {self.compressed_rows} "
            f"--window-page-size {self.window_page_size} --page-size {self.compressed_page_size} "
            f"--compressed-keys {self.compressed_keys} --sinks {'on' if self.sinks else 'off'} "
            f"--inverse-rope {'on' if self.inverse_rope else 'off'}"
        )

    def make_inputs(self, seed: int) -> "Dsv4Inputs":
        from tilewright.bench.dsv4_inputs import Dsv4Inputs  # which needs PyTorch

        return Dsv4Inputs(self, seed)

    def errors(self, inputs: "Dsv4Inputs", output: Any, lse: Any = None) -> Errors:
        return oracle.errors(self, inputs.expected, output, lse, of_worst_sequence=True)

    def error_limit(self, inputs: "Dsv4Inputs", is_ours: bool) -> float:
        return ERROR_LIMITS[self.dtype]


def _keys(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)\+(\d+)", text)
    if not found or not (int(found[1]) or int(found[2])):
        raise argparse.ArgumentTypeError(f"{text}: must be WINDOW+COMPRESSED, and not 0+0")
    return int(found[1]), int(found[2])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch", type=numbers, metavar="B,...", help="requests")
    parser.add_argument("--seqlen", type=numbers, default="1", metavar="N,...", help="new tokens")
    parser.add_argument("--heads", type=numbers, metavar="H,...")
    parser.add_argument(
        "--keys",
        type=_keys,
        nargs="+",
        metavar="WINDOW+COMPRESSED",
        help="of a token in both scopes; 0: no such scope",
    )
    parser.add_argument("--dtype", choices=sorted(ERROR_LIMITS), help="of Q and the result")
    parser.add_argument(
        "--rows",
        type=words_of(ROW_BYTES),
        default="e4m3_bf16",
        metavar="FORMAT,...",
        help="of both caches",
    )
    parser.add_argument(
        "--window-rows", choices=sorted(ROW_BYTES), help="of the window's cache, if not as --rows"
    )
    parser.add_argument("--window-page-size", type=int, default=64, help="rows")
    parser.add_argument("--page-size", type=int, default=64, help="rows of the compressed cache's")
    parser.add_argument("--compressed-keys", choices=("list", "range"), default="list")
    parser.add_argument(
        "--context", type=int, help="rows of a request in the compressed cache, for its lists"
    )
    parser.add_argument("--sinks", choices=SWITCH, default="on", help="one for each head")
    parser.add_argument("--inverse-rope", choices=SWITCH, default="off", help="rotates O back")
    add_timed_argument(parser, default="graph")


def cuda_timer(args: argparse.Namespace, device: str) -> CudaTimer:
    return timer_of(args.timed, device, "rotation")


def cases(args: argparse.Namespace, device: str) -> Iterator[Dsv4Case]:
    """The sweep, with all batches of a size side by side."""
    defaults = DEFAULTS[device.partition(":")[0]]
    for (window, compressed), rows, heads, sinks, rope, q_len, batch in itertools.product(
        args.keys or defaults["keys"],
        args.rows,
        args.heads or defaults["heads"],
        SWITCH[args.sinks],
        SWITCH[args.inverse_rope],
        args.seqlen,
        args.batch or defaults["batch"],
    ):
        is_list = args.compressed_keys == "list"
        context = args.context or defaults["context"]
        yield Dsv4Case(
            dtype=args.dtype or defaults["dtype"],
            batch=batch,
            q_len=q_len,
            heads=heads,
            window=window,
            compressed=compressed,
            device=device,
            window_rows=args.window_rows or rows,
            compressed_rows=rows,
            window_page_size=args.window_page_size,
            compressed_page_size=args.page_size,
            compressed_keys=args.compressed_keys,
            context=max(context, compressed) if is_list else compressed,
            sinks=sinks,
            inverse_rope=rope,
            between_bytes=bytes_between(device),
        )
