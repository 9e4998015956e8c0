"""This library's kernels, each an entrant of its own, and so are flash's variants."""

from collections.abc import Callable
from functools import partial
from typing import Any

import tilewright
from tilewright import _native
from tilewright._kernels import problem_of
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
        return _native.why_not(self.kernel.name, problem_of(case.to_json()), device_index=index)

    def prepare(self, case: Any, inputs: Any) -> Callable[[], Any]:
        return partial(self._attention, case, inputs)

    def lse(self, case: Any, inputs: Any) -> Any:
        return self._attention(case, inputs, return_lse=True)[1]

    def _attention(self, case: Any, inputs: Any, **options: Any) -> Any:
        return tilewright.attention(
            inputs.q,
            inputs.k,
            inputs.v,
            causal=case.causal,
            window_size=case.window_size,
            softcap=case.softcap,
            sinks=inputs.sinks,
            cu_seqlens_q=inputs.cu_seqlens,
            cu_seqlens_k=inputs.cu_seqlens,
            kernel=self.kernel.name,
            **options,
        )


def peers(device: str) -> list[Peer]:
    kind = device.partition(":")[0]
    kernels = [
        row for row in tilewright.kernels() if row.operation == "attention" and row.device == kind
    ]
    variants = [variant for kernel in kernels for variant in kernel.variants]
    return [TilewrightKernel(kernel) for kernel in kernels] + [
        TilewrightKernel(variant, in_all=False) for variant in variants
    ]
