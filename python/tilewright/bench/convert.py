"""Problems of operations that read and write each byte once: rotate_quantize, dequantize_kv_rows
and rope, each beside a copy of as many bytes."""

import abc
import argparse
import dataclasses
import itertools
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tilewright.bench import oracle
from tilewright.bench.case import Case, Errors
from tilewright.bench.dsv4 import DIM, ROW_BYTES, SIZE_BYTES
from tilewright.bench.timing import CudaTimer

if TYPE_CHECKING:
    from tilewright.bench.convert_inputs import ConversionInputs

RULES = {"samples": 50, "gap": 0.02}

Sweep = dict[str, dict[str, tuple[Any, ...]]]


@dataclass(frozen=True)
class Conversion(Case):
    """Its fields are the keys of its case; SWEEP has the values of those that the race varies, on a
    GPU and on the CPU."""

    device: str

    SWEEP: ClassVar[Sweep]
    lengths = ()  # no packed sequences, as the oracle asks

    @property
    @abc.abstractmethod
    def moved_bytes(self) -> float:
        """Read and written."""

    @property
    def flops(self) -> float:
        return 0.0

    @property
    def compulsory_bytes(self) -> int:
        return math.ceil(self.moved_bytes)

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "device"}

    @property
    def label(self) -> str:
        words = (f"{name} {value}" for name, value in self.to_json().items())
        return f"{self.operation}: {', '.join(words)}"

    def arguments(self) -> str:
        device = self.device.partition(":")[0]
        values = (f"{name}={value}" for name, value in self.to_json().items())
        return f"convert {self.operation} --device {device} --set {' '.join(values)}"

    def make_inputs(self, seed: int) -> "ConversionInputs":
        from tilewright.bench.convert_inputs import INPUTS  # which need PyTorch

        return INPUTS[self.operation](self, seed)

    def errors(self, inputs: "ConversionInputs", output: Any, lse: Any = None) -> Errors:
        """Beside the CPU's kernel, which gives the same bytes."""
        expected = oracle.Expected([inputs.expected.to(output.device).double()], [])
        return oracle.errors(self, expected, output[None], None)

    def error_limit(self, inputs: "ConversionInputs", is_ours: bool) -> float:
        return 0.0


@dataclass(frozen=True)
class RotateQuantizeCase(Conversion):
    """Rows of one tensor: of queries or keys, which are rotated, or of values, transposed."""

    dtype: str = "bf16"
    batch: int = 8
    len: int = 2048
    heads: int = 16
    head_dim: int = 128
    rotated: bool = True
    transposed: bool = False

    operation = "rotate_quantize"
    SWEEP: ClassVar[Sweep] = {
        "cuda": {"head_dim": (64, 128, 256), "transposed": (False, True)},
        "cpu": {"batch": (1,), "len": (256,), "heads": (2,), "transposed": (False, True)},
    }

    @classmethod
    def of(cls, **fields: Any) -> "RotateQuantizeCase":
        """Where it is not said, the heads are those of attention's sweep, and values alone are not
        rotated."""
        heads = 2048 // fields.get("head_dim", cls.head_dim)
        return cls(**{"heads": heads, "rotated": not fields.get("transposed", False)} | fields)

    @property
    def moved_bytes(self) -> float:
        elements = self.batch * self.len * self.heads * self.head_dim
        return (SIZE_BYTES[self.dtype] + 1 + 4 / (128 * self.head_dim)) * elements


@dataclass(frozen=True)
class DequantizeCase(Conversion):
    """DeepSeek-V4's KV rows, in pages that lie anywhere."""

    rows: int = 8192
    dtype: str = "bf16"
    format: str = "e4m3_bf16"
    page_size: int = 64

    operation = "dequantize_kv_rows"
    SWEEP: ClassVar[Sweep] = {
        "cuda": {"rows": (128, 8192, 262144), "format": tuple(ROW_BYTES)},
        "cpu": {"rows": (256,), "format": tuple(ROW_BYTES)},
    }

    @classmethod
    def of(cls, **fields: Any) -> "DequantizeCase":
        return cls(**fields)

    @property
    def moved_bytes(self) -> float:
        return self.rows * (ROW_BYTES[self.format] + DIM * SIZE_BYTES[self.dtype] + 8)


@dataclass(frozen=True)
class RopeCase(Conversion):
    """The last 64 dims of heads of 512, from one tensor to another."""

    tokens: int = 4096
    heads: int = 64
    dtype: str = "bf16"
    inverse: bool = False

    operation = "rope"
    SWEEP: ClassVar[Sweep] = {
        "cuda": {"heads": (1, 64), "tokens": (128, 4096, 16384), "inverse": (False, True)},
        "cpu": {"heads": (1, 2), "tokens": (64,), "inverse": (False, True)},
    }

    @classmethod
    def of(cls, **fields: Any) -> "RopeCase":
        return cls(**fields)

    @property
    def moved_bytes(self) -> float:
        return self.tokens * (2 * self.heads * DIM * SIZE_BYTES[self.dtype] + 8)


CONVERSIONS = {case.operation: case for case in (RotateQuantizeCase, DequantizeCase, RopeCase)}


def _setting(text: str) -> tuple[str, Any]:
    name, is_set, value = text.partition("=")
    if not is_set:
        raise argparse.ArgumentTypeError(f"{text}: must be NAME=VALUE")
    words = {"True": True, "False": False}
    return name, words.get(value, int(value) if value.isdigit() else value)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("conversion", choices=CONVERSIONS)
    parser.add_argument(
        "--set",
        type=_setting,
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="a key of the case and its only value",
    )


def cuda_timer(args: argparse.Namespace, device: str) -> CudaTimer:
    return CudaTimer(device, "flush")


def cases(args: argparse.Namespace, device: str) -> Iterator[Conversion]:
    """The sweep, or those of it that --set leaves."""
    make = CONVERSIONS[args.conversion]
    known = {field.name for field in dataclasses.fields(make)} - {"device"}
    fixed = dict(args.set)
    for name in fixed.keys() - known:
        sys.exit(f"--set: {name} is not one of {', '.join(sorted(known))}")
    varied = make.SWEEP[device.partition(":")[0]] | {name: (fixed[name],) for name in fixed}
    for values in itertools.product(*varied.values()):
        yield make.of(device=device, **dict(zip(varied, values, strict=True)))
