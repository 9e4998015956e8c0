"""Problems of attention on FP8: one case, and the cases that a command line asks for.

Queries, keys and values are BF16 rows, which are quantised before anything is timed. A case may say
how; otherwise each implementation has them in the form that it is made for. Errors of results are
those to the exact attention of the rows, so that they have the share of quantising, too. An LSE's
is that to the exact one of the quantised queries and keys.
"""

import argparse
import dataclasses
import itertools
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.bench import attention, oracle
from tilewright.bench.attention import AttentionCase, cuda_timer
from tilewright.bench.case import Errors
from tilewright.bench.options import SWITCH, words_of

if TYPE_CHECKING:
    from tilewright.bench.fp8_inputs import Fp8Inputs

__all__ = ["RULES", "Fp8Case", "add_arguments", "cases", "cuda_timer"]

ROW_DTYPE = "bf16"  # before quantisation
BYTES_OF_OUT = 2
DESCALES = ("tensor", "block")
VALUES = {"normal": (False,), "outliers": (True,), "both": (False, True)}
# By whether there are outliers. Rounding Q, K, V and P to three bits gives about 0.05, and
# one descale that outliers have widened about twice that. What is beyond is no rounding.
ERROR_LIMITS = {False: 0.1, True: 0.3}
SCORE_BITS = 13  # kept behind the largest term, of each 32 products that are added (docs/fp8.md)
MEAN_SQUARES = {False: 2, True: 40}  # of a row of Q times one of K, at most

RULES = attention.RULES


@dataclass(frozen=True)
class Fp8Case(AttentionCase):
    """rotated, descale
             the form of q, k and v: both None where each implementation has its own
    outliers values are normal with rare outliers
    checked_rows
             of each sequence, a random sample, whose errors count; 0: all rows
    """

    rotated: bool | None = None
    descale: str | None = None  # of DESCALES
    outliers: bool = False
    checked_rows: int = 0

    operation = "attention_fp8"

    def in_16_bits(self) -> AttentionCase:
        """The same of the rows before they are quantised."""
        fields = (field.name for field in dataclasses.fields(AttentionCase))
        of_rows = {name: getattr(self, name) for name in fields} | {"dtype": ROW_DTYPE}
        return AttentionCase(**of_rows)

    @property
    def compulsory_bytes(self) -> int:
        queries = self.q_len * self.heads * (self.head_dim + BYTES_OF_OUT * self.v_dim)
        keys = self.kv_len * self.kv_heads * (self.head_dim + self.v_dim)
        return (1 if self.lengths else self.batch) * (queries + keys)

    def to_json(self) -> dict[str, Any]:
        fields = super().to_json()
        if self.descale:
            fields |= {"rotated": self.rotated, "descale": self.descale}
        if self.outliers:
            fields["outliers"] = True
        return fields | ({"checked_rows": self.checked_rows} if self.checked_rows else {})

    @property
    def label(self) -> str:
        form = (
            f", a descale a {self.descale}{' and rotated' * self.rotated}" if self.descale else ""
        )
        return f"{super().label}{form}{', outliers' * self.outliers}"

    def arguments(self) -> str:
        form = ""
        if self.descale:
            form = f" --rotated {'on' if self.rotated else 'off'} --descale {self.descale}"
        values = "outliers" if self.outliers else "normal"
        rows = f" --checked-rows {self.checked_rows}" if self.checked_rows else ""
        device = self.device.partition(":")[0]
        return f"fp8 --device {device} {self.problem_arguments}{form} --values {values}{rows}"

    def make_inputs(self, seed: int) -> "Fp8Inputs":
        from tilewright.bench.fp8_inputs import Fp8Inputs  # which needs PyTorch

        return Fp8Inputs(self, seed)

    def errors(self, inputs: "Fp8Inputs", output: Any, lse: Any = None) -> Errors:
        out = output if hasattr(output, "dtype") else output.values()
        expected = inputs.expected
        if hasattr(lse, "form"):
            expected = dataclasses.replace(expected, lses=inputs.expected_lses(lse.form))
            lse = lse.values
        return oracle.errors(self, expected, out, lse)

    def error_limit(self, inputs: "Fp8Inputs", is_ours: bool) -> float:
        return ERROR_LIMITS[self.outliers]

    @property
    def lse_limit(self) -> float:
        """What scores may be off: a product of two rows is at most that of their norms."""
        products = math.sqrt(self.head_dim) * MEAN_SQUARES[self.outliers]
        return math.ceil(self.head_dim / 32) * 2.0**-SCORE_BITS * products


def add_arguments(parser: argparse.ArgumentParser) -> None:
    attention.add_problem_arguments(parser)
    parser.add_argument(
        "--descale",
        type=words_of(DESCALES),
        metavar="KIND,...",
        help=f"of {', '.join(DESCALES)} of 128 rows; if not given, what each is made for",
    )
    parser.add_argument(
        "--rotated", choices=SWITCH, default="off", help="queries and keys, with --descale"
    )
    parser.add_argument(
        "--values",
        choices=VALUES,
        default="normal",
        help="outliers: N(0, 1) + N(0, 100) Bernoulli(0.001), 100 being the variance",
    )
    parser.add_argument(
        "--checked-rows", type=int, default=0, help="of a sequence, at random; 0: all"
    )


def cases(args: argparse.Namespace, device: str) -> Iterator[Fp8Case]:
    """The sweep, lengths innermost."""
    if args.checked_rows and args.lengths:
        sys.exit("--checked-rows: goes with sequences of one length")
    forms = [(None, None)]
    if args.descale:
        forms = [(on, descale) for descale in args.descale for on in SWITCH[args.rotated]]
    problems = list(attention.problems(args, device))
    for outliers, (rotated, descale), fields in itertools.product(
        VALUES[args.values], forms, problems
    ):
        yield Fp8Case(
            dtype="e4m3",
            rotated=rotated,
            descale=descale,
            outliers=outliers,
            checked_rows=args.checked_rows,
            **fields,
        )
