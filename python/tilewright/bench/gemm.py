"""Problems of GEMMs with NVFP4 weights: one case, and the cases that a command line asks for."""

import argparse
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tilewright.bench.case import Case, Errors
from tilewright.bench.gemm_inputs import GemmInputs
from tilewright.bench.gemm_oracle import errors, rounding_error
from tilewright.bench.options import SWITCH, numbers
from tilewright.bench.timing import CudaTimer, add_timed_argument, bytes_between, timer_of

SUMS_ERROR = 1e-6  # of this library's results, beyond the error of rounding exact ones
# Rounding alone gives 2.1e-4 and 1.7e-3; Humming also rounds partial sums.
PEER_ERROR_LIMITS = {"fp16": 7e-4, "bf16": 5e-3}

# The default sweep: layers of large models on a GPU, small ones on a CPU.
DEFAULTS = {
    "cuda": {
        "shapes": ((7168, 16384), (4096, 7168), (7168, 2048), (8192, 8192)),
        "m": (1, 16, 64, 128, 256, 1024, 4096),
    },
    "cpu": {"shapes": ((512, 1024),), "m": (1, 16)},
}
RULES = {"samples": 25, "gap": 0.02}


@dataclass(frozen=True)
class GemmCase(Case):
    m: int
    n: int
    k: int
    dtype: str  # of the result, and of the activations if they are not NVFP4
    w4a4: bool  # activations are NVFP4 too
    batch_invariant: bool
    device: str
    rmsnorm: bool = False  # launched before each GEMM, whose activations it gives; timed, too
    between_bytes: int = 0  # the least that is read between two reads of a weight

    operation = "gemm_nvfp4"

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k

    @property
    def compulsory_bytes(self) -> int:
        activations = self.m * self.k
        return (
            _nvfp4_bytes(self.n * self.k)
            + (_nvfp4_bytes(activations) if self.w4a4 else 2 * activations)
            + (2 * 2 * activations if self.rmsnorm else 0)
            + 2 * self.m * self.n
        )

    def to_json(self) -> dict[str, Any]:
        fields = {
            "m": self.m,
            "n": self.n,
            "k": self.k,
            "l": 1,
            "a_dtype": "nvfp4" if self.w4a4 else self.dtype,
            "b_dtype": "nvfp4",
            "out_dtype": self.dtype,
        }
        features = {"batch_invariant": self.batch_invariant, "rmsnorm": self.rmsnorm}
        return fields | {name: True for name, is_on in features.items() if is_on}

    @property
    def label(self) -> str:
        activations = f"nvfp4 to {self.dtype}" if self.w4a4 else self.dtype
        norm = "rmsnorm, " if self.rmsnorm else ""
        invariant = " batch-invariant" if self.batch_invariant else ""
        return f"{norm}{activations}{invariant} {self.n}x{self.k} m={self.m}"

    def arguments(self) -> str:
        return (
            f"gemm --device {self.device.partition(':')[0]} --dtype {self.dtype} "
            f"--shapes {self.n}x{self.k} --m {self.m}{' --w4a4' * self.w4a4}"
            f"{' --batch-invariant on' * self.batch_invariant}{' --rmsnorm' * self.rmsnorm}"
        )

    def make_inputs(self, seed: int) -> GemmInputs:
        return GemmInputs(self, seed)

    def errors(self, inputs: GemmInputs, output: Any, lse: Any = None) -> Errors:
        return errors(inputs.expected, output)

    def error_limit(self, inputs: GemmInputs, is_ours: bool) -> float:
        if is_ours:
            return rounding_error(inputs.expected, self.dtype) + SUMS_ERROR
        return PEER_ERROR_LIMITS[self.dtype]


def _nvfp4_bytes(elements: int) -> int:
    return elements // 2 + elements // 16


def _shape(text: str) -> tuple[int, int]:
    n, _, k = text.partition("x")
    if int(k) % 16:
        raise argparse.ArgumentTypeError(f"{text}: K must be a multiple of 16")
    return int(n), int(k)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--shapes",
        type=_shape,
        nargs="+",
        metavar="NxK",
        help="of weights: output features by what is summed over",
    )
    parser.add_argument("--m", type=numbers, metavar="M,...", help="tokens")
    parser.add_argument("--dtype", choices=sorted(PEER_ERROR_LIMITS), default="bf16")
    parser.add_argument("--w4a4", action="store_true", help="activations in NVFP4 too")
    parser.add_argument(
        "--batch-invariant",
        choices=SWITCH,
        default="off",
        help="bits of a row do not depend on the others",
    )
    parser.add_argument(
        "--rmsnorm", action="store_true", help="before each GEMM, and timed with it; in PyTorch"
    )
    parser.add_argument(
        "--constant-weights",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="this library is told that a weight has long been written",
    )
    parser.add_argument(
        "--rotate-weights",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="each launch reads another copy, and so reads it from memory",
    )
    add_timed_argument(parser, default="series")
    parser.add_argument(
        "--humming-search",
        type=int,
        default=0,
        metavar="N",
        help="race Humming in the best of so many configurations, too, each case by itself",
    )


def cuda_timer(args: argparse.Namespace, device: str) -> CudaTimer:
    return timer_of(args.timed, device, "rotation" if args.rotate_weights else None)


def cases(args: argparse.Namespace, device: str) -> Iterator[GemmCase]:
    """The sweep, M innermost."""
    if args.rmsnorm and args.w4a4:
        sys.exit("--rmsnorm gives activations in 16 bits, which --w4a4 does not take")
    if args.rmsnorm and "torch" not in sys.modules:
        sys.exit("--rmsnorm needs PyTorch")
    kind = device.partition(":")[0]
    between_bytes = bytes_between(device) if args.rotate_weights else 0
    shapes = args.shapes or DEFAULTS[kind]["shapes"]
    for batch_invariant, (n, k) in itertools.product(SWITCH[args.batch_invariant], shapes):
        for m in args.m or DEFAULTS[kind]["m"]:
            yield GemmCase(
                m=m,
                n=n,
                k=k,
                dtype=args.dtype,
                w4a4=args.w4a4,
                batch_invariant=batch_invariant,
                device=device,
                rmsnorm=args.rmsnorm,
                between_bytes=between_bytes,
            )
