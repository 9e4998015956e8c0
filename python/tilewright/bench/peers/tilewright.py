"""This library's kernels, each an entrant of its own."""

from collections.abc import Callable
from typing import Any

import tilewright
from tilewright import _native
from tilewright.bench.peers import Peer


class TilewrightKernel(Peer):
    version = tilewright.__commit__

    def __init__(self, kernel: tilewright.Kernel):
        self.kernel = kernel.name
        self.name = f"tilewright/{kernel.name}"
        self.operation = kernel.operation

    def supports(self, case: Any) -> str | None:
        problem = case.to_json()
        problem["value_dim"] = problem.pop("v_dim")
        index = int(case.device.partition(":")[2] or 0)
        return _native.why_not(self.kernel, device_index=index, **problem)

    def prepare(self, case: Any, inputs: Any) -> Callable[[], Any]:
        return lambda: tilewright.attention(
            inputs.q, inputs.k, inputs.v, causal=case.causal, kernel=self.kernel
        )


def peers(device: str) -> list[Peer]:
    kind = device.partition(":")[0]
    return [TilewrightKernel(row) for row in tilewright.kernels() if row.device == kind]
