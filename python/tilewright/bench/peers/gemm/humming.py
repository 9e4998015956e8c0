"""Humming, from the wheel humming-kernels: WGMMA kernels that it compiles at run time.

"humming" runs the configuration that the library chooses for a case. "humming_search" runs the best
of so many as --humming-search says: those that it would choose for any number of tokens, and
variants of them. Only searched ones may start beside the launch before them ("use_pdl"): the
library's own for Hopper do not.
"""

import argparse
import copy
import importlib.metadata
import itertools
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from humming.kernel.humming import HummingKernel
from humming.layer import HummingLayer
from humming.tune import get_heuristics_config

from tilewright.bench.peers import Peer
from tilewright.bench.tensors import LIBRARY_DTYPES
from tilewright.bench.timing import CudaSeriesTimer, Rotation, copies_to_rotate

VARIANTS = {
    "use_pdl": (True, False),
    "num_stages": (3, 4, 5, 6, 8),
    "num_ctas_per_sm": (1, 2),
    "use_stream_k": (True, False),
}
SEARCH_LAUNCHES = 10
LARGEST_DIFFERENCE = 1e-2  # relative, of a searched configuration's result


Kernel = tuple[str, str, str, str]  # layer, computation, configuration, device


class Humming(Peer):
    name = "humming"
    version = importlib.metadata.version("humming-kernels")

    def __init__(self) -> None:
        self.compiled: set[Kernel] = set()

    def supports(self, case: Any) -> str | None:
        if case.w4a4:
            return "takes no NVFP4 activations on Hopper"
        return None

    def candidates(self, layer: Any, case: Any) -> list[dict[str, Any]]:
        return [_default(layer, case)]

    def warm_up(self, cases: list[Any]) -> None:
        """Compiles all kernels side by side: each takes seconds on a core."""
        layers = {}
        for case in cases:
            key = (case.n, case.k, case.dtype, case.batch_invariant)
            layers.setdefault(key, []).append(case)
        kernels = set()
        for same_layer in layers.values():
            layer = _empty_layer(same_layer[0]).to(same_layer[0].device)
            layer.transform()
            for case in same_layer:
                kernels |= {_kernel(layer, case, c) for c in self.candidates(layer, case)}
        self.compiled = _compile(kernels)

    def prepare(self, case: Any, inputs: Any) -> Callable[[], Any]:
        layers = _layers(case, inputs)
        return _rotation(layers, case, inputs, self.choose(layers, case, inputs))

    def choose(self, layers: list[Any], case: Any, inputs: Any) -> dict[str, Any]:
        return _default(layers[0], case)


class HummingSearch(Humming):
    name = "humming_search"

    def __init__(self) -> None:
        super().__init__()
        self.candidates_a_case = 0
        self.setups: dict[Any, dict[str, Any]] = {}

    def configure(self, args: argparse.Namespace) -> bool:
        self.candidates_a_case = args.humming_search
        return self.candidates_a_case > 0

    def candidates(self, layer: Any, case: Any) -> list[dict[str, Any]]:
        return list(itertools.islice(_distinct(_variants(layer, case)), self.candidates_a_case))

    def setup(self, case: Any) -> dict[str, Any]:
        return self.setups[case]

    def choose(self, layers: list[Any], case: Any, inputs: Any) -> dict[str, Any]:
        """The fastest of those that could be compiled and are right."""
        expected = _rotation(layers, case, inputs, _default(layers[0], case))().clone()
        timer = CudaSeriesTimer(case.device, "rotation", SEARCH_LAUNCHES)
        times = []
        for config in self.candidates(layers[0], case):
            if _kernel(layers[0], case, config) in self.compiled:
                call = _rotation(layers, case, inputs, config)
                if _is_right(call, expected):
                    series, launches = timer.prepare(call, SEARCH_LAUNCHES)
                    (mean_us,), _ = timer.sample(series, lambda: None, launches)
                    times.append((mean_us, config))
        _, best = min(times, key=lambda timed: timed[0])
        self.setups[case] = {"configurations_timed": len(times), "configuration": best}
        return best


def _empty_layer(case: Any) -> Any:
    return HummingLayer(
        shape_n=case.n,
        shape_k=case.k,
        weight_config={"quant_method": "modelopt", "quant_algo": "nvfp4"},
        torch_dtype=getattr(torch, LIBRARY_DTYPES[case.dtype]),
    )


def _layers(case: Any, inputs: Any) -> list[Any]:
    """The weight in Humming's own order, in copies to be rotated."""
    codes, scales = inputs.weight
    tensors = {"weight": codes, "weight_scale": scales, "weight_scale_2": 1 / inputs.global_scale}
    layer = _empty_layer(case).to(case.device)
    layer.load_from_tensors(tensors)
    layer.transform()
    size_bytes = codes.nbytes + scales.nbytes
    count = copies_to_rotate(size_bytes, case.between_bytes)
    return [layer] + [copy.deepcopy(layer) for _ in range(count - 1)]


def _compute_config(case: Any) -> dict[str, Any]:
    return {"use_batch_invariant": case.batch_invariant}


def _heuristics(layer: Any, case: Any) -> list[Any]:
    """The library's own: [more tokens than, up to, configuration], in ascending order."""
    return get_heuristics_config(layer.humming_config, **_compute_config(case), device=case.device)


def _default(layer: Any, case: Any) -> dict[str, Any]:
    return next(config for more_than, up_to, config in _heuristics(layer, case)
                if more_than < case.m <= up_to)  # fmt: skip


def _variants(layer: Any, case: Any) -> Iterator[dict[str, Any]]:
    """Its own for the nearest numbers of tokens first. Some variants will be refused."""
    nearest = sorted(_heuristics(layer, case), key=lambda c: max(c[0] - case.m, case.m - c[1]))
    configs = [config for _, _, config in nearest]
    for use_pdl in VARIANTS["use_pdl"]:
        yield from (config | {"use_pdl": use_pdl} for config in configs)
    for config in configs:
        for values in itertools.product(*VARIANTS.values()):
            yield config | dict(zip(VARIANTS, values, strict=True))


def _distinct(configs: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    seen = set()
    for config in configs:
        text = json.dumps(config, sort_keys=True)
        if text not in seen:
            seen.add(text)
            yield config


def _kernel(layer: Any, case: Any, config: dict[str, Any]) -> Kernel:
    computation = json.dumps(_compute_config(case))
    return layer.humming_config.to_str(), computation, json.dumps(config), case.device


def _compile(kernels: set[Kernel]) -> set[Kernel]:
    """Those that there are now."""

    def is_compiled(kernel: Kernel) -> bool:
        try:
            HummingKernel.prepare_kernels(*kernel)
        except Exception:  # noqa: BLE001  it refuses configurations in many ways
            return False
        return True

    ordered = list(kernels)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return set(itertools.compress(ordered, pool.map(is_compiled, ordered)))


def _rotation(layers: list[Any], case: Any, inputs: Any, config: dict[str, Any]) -> Rotation:
    options = {
        "outputs": inputs.new_output(),
        "compute_config": json.dumps(_compute_config(case)),
        "tuning_config": json.dumps(config),
    }
    return inputs.rotation([partial(layer, **options) for layer in layers])


def _is_right(call: Callable[[], Any], expected: Any) -> bool:
    try:
        difference = (call() - expected).float().norm()
    except Exception:  # noqa: BLE001  likewise, where it is launched
        return False
    return bool(difference <= LARGEST_DIFFERENCE * expected.float().norm())


def peers(device: str) -> list[Peer]:
    return [Humming(), HummingSearch()] if device.startswith("cuda") else []
