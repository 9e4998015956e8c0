"""What an operation must say of a problem for the race to run, check, time and record it."""

import abc
from dataclasses import dataclass
from typing import Any, ClassVar

LSE_LIMIT = 1e-5  # of FP32 sums


@dataclass(frozen=True)
class Errors:
    """Of a result, against float64."""

    rel_fro: float  # of the Frobenius norm
    max_abs: float
    # The largest of |lse - exact| / (1 + |exact| / 10): 1e-5 allows 1e-5 + 1e-6 |exact|.
    lse: float | None = None


class Case(abc.ABC):
    """One problem on one device. Peers of its operation know its class and read its fields."""

    operation: ClassVar[str]
    device: str  # "cpu" or "cuda:0"

    @property
    @abc.abstractmethod
    def flops(self) -> float:
        """Nominal floating-point operations of one call."""

    @property
    @abc.abstractmethod
    def compulsory_bytes(self) -> int:
        """Bytes of all inputs and outputs, each moved once."""

    @abc.abstractmethod
    def to_json(self) -> dict[str, Any]:
        """The `case` object of a results line."""

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """A few words for a table's row."""

    @abc.abstractmethod
    def arguments(self) -> str:
        """The command-line arguments that give this case alone."""

    @abc.abstractmethod
    def make_inputs(self, seed: int) -> Any:
        """Random inputs on the device."""

    @abc.abstractmethod
    def errors(self, inputs: Any, output: Any, lse: Any = None) -> Errors:
        """Of an output, and of the LSE where there is one."""

    @property
    def lse_limit(self) -> float:
        """The largest Errors.lse that counts as right, of this library's kernels."""
        return LSE_LIMIT

    @abc.abstractmethod
    def error_limit(self, inputs: Any, is_ours: bool) -> float:
        """The largest relative Frobenius error that counts as right, of this library's kernels or
        of others."""
