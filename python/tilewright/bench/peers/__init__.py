"""Implementations that can race. A peer is one file here: a module with a function

    def peers(device: str) -> list[Peer]

that raises ImportError where its library is missing.
"""

import abc
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

OURS = "tilewright"


class Peer(abc.ABC):
    """One implementation of one operation."""

    name: str  # `impl` in results files
    version: str  # `impl_version`
    operation: str = "attention"
    in_all: bool = True  # of those that "all" stands for

    @property
    def is_ours(self) -> bool:
        return self.name.startswith(f"{OURS}/")

    @abc.abstractmethod
    def supports(self, case: Any) -> str | None:
        """Why it cannot run the case; None where it should."""

    @abc.abstractmethod
    def prepare(self, case: Any, inputs: Any) -> Callable[[], Any]:
        """What is timed: a call that queues the operation and returns its output."""


def module_names() -> list[str]:
    """The peers' files, this library's own aside."""
    return [m.name for m in pkgutil.iter_modules(__path__) if m.name != OURS]


def load(module_name: str, device: str) -> list[Peer]:
    """The peers of one file. Raises ImportError where its library is missing."""
    return importlib.import_module(f"{__name__}.{module_name}").peers(device)
