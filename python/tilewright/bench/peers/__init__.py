"""Implementations that can race. A peer is one file in the folder of its command, attention/,
decode/, gemm/ and so on: a module with a function

    def peers(device: str) -> list[Peer]

that raises ImportError where its library is missing.
"""

import abc
import argparse
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

OURS = "tilewright"
# These compute nothing: what they take is the least that others can.
PLAIN_READ = "plain_read"
COPY = "copy"


class Peer(abc.ABC):
    """One implementation of one operation."""

    name: str  # `impl` in results files
    version: str  # `impl_version`
    in_all: bool = True  # of those that "all" stands for
    is_answer: bool = True  # False: what a call returns is not the operation's result

    @property
    def is_ours(self) -> bool:
        return self.name.startswith(f"{OURS}/")

    def configure(self, args: argparse.Namespace) -> bool:
        """Takes its own options from the command line. False where they leave it out."""
        return True

    def warm_up(self, cases: list[Any]) -> None:
        """Does what is better done once for all the cases that it supports."""
        return

    @abc.abstractmethod
    def supports(self, case: Any) -> str | None:
        """Why it cannot run the case; None where it should."""

    @abc.abstractmethod
    def prepare(self, case: Any, inputs: Any) -> Callable[[], Any]:
        """What is timed: a call that queues the operation and returns its output."""

    def lse(self, case: Any, inputs: Any) -> Any:
        """Attention's, of a call of its own, as the library's lse is; None where it gives none."""
        return None

    def setup(self, case: Any) -> dict[str, Any] | None:
        """What it chose for a case that it has prepared, for the results file."""
        return None


def module_names(command: str) -> list[str]:
    """The files of a command's peers, this library's own aside."""
    folder = importlib.import_module(f"{__name__}.{command}")
    return [m.name for m in pkgutil.iter_modules(folder.__path__) if m.name != OURS]


def load(command: str, module_name: str, device: str) -> list[Peer]:
    """The peers of one file. Raises ImportError where its library is missing."""
    return importlib.import_module(f"{__name__}.{command}.{module_name}").peers(device)
