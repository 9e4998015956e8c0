"""A kernel of this library as an entrant."""

import abc
from collections.abc import Callable
from typing import Any

import tilewright
from tilewright import _native
from tilewright.bench.peers import Peer


class TilewrightKernel(Peer):
    version = tilewright.__commit__

    def __init__(self, kernel: tilewright.Kernel, in_all: bool = True):
        self.kernel = kernel
        self.name = f"tilewright/{kernel.name}"
        self.in_all = in_all

    def supports(self, case: Any) -> str | None:
        index = int(case.device.partition(":")[2] or 0)
        for feature in case.features:
            if not self.kernel.takes(feature):
                return f"does not take {feature}"
        return _native.why_not(self.kernel.name, self.problem_of(case), device_index=index)

    @abc.abstractmethod
    def problem_of(self, case: Any) -> Any:
        """The case as the compiled table knows it, its features aside."""


def entrants(
    operation: str, device: str, make: Callable[[tilewright.Kernel, bool], Peer]
) -> list[Peer]:
    """The kernels of an operation and then their variants, which "all" leaves out."""
    kind = device.partition(":")[0]
    kernels = [
        row for row in tilewright.kernels() if row.operation == operation and row.device == kind
    ]
    variants = [variant for kernel in kernels for variant in kernel.variants]
    return [make(kernel, True) for kernel in kernels] + [make(row, False) for row in variants]
