"""FlashInfer's XQA kernels, from the libraries that tools/xqa.py builds.

They take pages alone, so a contiguous cache is described as pages that follow each other.
"""

import argparse
import functools
import pathlib
from collections.abc import Callable
from typing import Any

import torch
import tvm_ffi

from tilewright.bench.peers import Peer

PAGE_SIZE = 64  # of contiguous caches
SEMAPHORE_BYTES = 8 << 20  # as much as FlashInfer sets aside
WORKSPACE_BYTES = 256 << 20


class Xqa(Peer):
    name = "xqa"
    version = "unknown"

    def configure(self, args: argparse.Namespace) -> bool:
        self.folder: pathlib.Path | None = args.xqa
        if self.folder is None:
            return False
        self.version = f"FlashInfer {(self.folder / 'version').read_text().strip()}"
        return True

    def supports(self, case: Any) -> str | None:
        if case.most_new > 1 or case.head_dim != case.v_dim:
            return "takes one new token a sequence, and equal head dims"
        if case.batch_invariant:
            return "does not say whether it is batch-invariant"
        if case.window is not None or case.softcap or case.descale != "tensor":
            return "takes no window in this build, no softcap, and one descale for all"
        if not case.page_size and case.kv_len % PAGE_SIZE:
            return f"a contiguous cache's capacity must be a multiple of {PAGE_SIZE}"
        path = self._library(case)
        return None if path.is_file() else f"{path.name} has not been built"

    def _library(self, case: Any) -> pathlib.Path:
        sizes = case.page_size or PAGE_SIZE, case.heads // case.kv_heads, case.head_dim
        return self.folder / f"xqa_{case.dtype}_{case.cache_dtype}_{'_'.join(map(str, sizes))}.so"

    def prepare(self, case: Any, inputs: Any) -> Callable[[], Any]:
        run = functools.partial(_module(self._library(case)).xqa_wrapper, *_leading(case))
        table = _block_table(case, inputs)
        out = inputs.new_output()
        k_factor, v_factor = _factors(inputs)
        semaphores = torch.zeros(SEMAPHORE_BYTES, dtype=torch.uint8, device=case.device)
        scratch = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=case.device)
        sinks = None if inputs.sinks is None else inputs.sinks.reshape(case.kv_heads, -1)

        def attention(k_cache: Any, v_cache: Any) -> Any:
            k, v = (_pages(case, cache) for cache in (k_cache, v_cache))
            run(
                k_factor / v_factor,  # to scale scores with, beside v_factor and head_dim**-0.5
                None,
                out,
                1.0,  # to scale the result with
                inputs.q,
                sinks,
                k,
                v,
                None,  # scales of blocks of NVFP4 caches
                None,
                table,
                table.shape[1] * (case.page_size or PAGE_SIZE),
                inputs.cache_seqlens,
                case.batch,
                v_factor,
                None,
                1,  # new tokens
                None,
                None,
                semaphores,
                scratch,
                True,  # programmatic dependent launch, as by default
            )
            return out

        return inputs.rotation(attention)


@functools.cache
def _module(path: pathlib.Path) -> Any:
    return tvm_ffi.load_module(str(path))


def _leading(case: Any) -> tuple[Any, ...]:
    """Whether WGMMA's kernel runs, SMs, KV heads, no window."""
    properties = torch.cuda.get_device_properties(case.device)
    return case.cache_dtype == "e4m3", properties.multi_processor_count, case.kv_heads, 0


def _factors(inputs: Any) -> tuple[float, float]:
    if inputs.k_descale is None:
        return 1.0, 1.0
    return float(inputs.k_descale), float(inputs.v_descale)


def _block_table(case: Any, inputs: Any) -> Any:
    if inputs.block_table is not None:
        return inputs.block_table
    pages = case.kv_len // PAGE_SIZE
    count = case.batch * pages
    return torch.arange(count, dtype=torch.int32, device=case.device).view(case.batch, pages)


def _pages(case: Any, cache: Any) -> Any:
    if case.cache_dtype == "e4m3":
        cache = cache.view(torch.uint8)
    return cache if case.page_size else cache.view(-1, PAGE_SIZE, *cache.shape[2:])


def peers(device: str) -> list[Peer]:
    return [Xqa()] if device.startswith("cuda") else []
