"""This library's kernels of all such operations, of which the command line names one."""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import tilewright
from tilewright.bench.convert import CONVERSIONS
from tilewright.bench.peers import Peer
from tilewright.bench.peers.tilewright_kernel import entrants


class TilewrightConversion(Peer):
    version = tilewright.__commit__

    def __init__(self, kernel: tilewright.Kernel, in_all: bool = True):
        self.kernel, self.in_all = kernel, in_all
        self.name = f"tilewright/{kernel.name}"

    def configure(self, args: argparse.Namespace) -> bool:
        return args.conversion == self.kernel.operation

    def supports(self, case: Any) -> str | None:
        return None

    def prepare(self, case: Any, inputs: Any) -> Callable[[], Any]:
        return partial(inputs.call, inputs.tensors, inputs.new_output(), self.kernel.name)


def peers(device: str) -> list[Peer]:
    return [peer for name in CONVERSIONS for peer in entrants(name, device, TilewrightConversion)]
