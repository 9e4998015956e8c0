"""FlashMLA, from the wheel tokenspeed-flashmla (1.0.0.post20260615 goes with PyTorch 2.11).

Its window is a list, too. It has kernels for 64 and 128 heads: fewer are padded to 64, as engines
do, with zeros, which are not looked at. Its plan, which the first call makes, is not timed.
"""

import importlib.metadata
from collections.abc import Callable
from functools import partial
from typing import Any

import flash_mla
import torch

from tilewright.bench.peers import Peer

HEADS = (64, 128)


class FlashMla(Peer):
    name = "flash_mla"
    version = importlib.metadata.version("tokenspeed-flashmla")

    def supports(self, case: Any) -> str | None:
        if case.dtype != "bf16" or case.heads > HEADS[-1]:
            return f"takes BF16 and at most {HEADS[-1]} heads"
        if {case.window_rows, case.compressed_rows} != {"e4m3_bf16"}:
            return "takes rows of 584 bytes alone"
        if case.inverse_rope:
            return "does not rotate back"
        if not case.window:
            return "needs keys in its first cache"
        return None

    def setup(self, case: Any) -> dict[str, Any] | None:
        heads = _padded(case.heads)
        return {"heads": heads} if heads != case.heads else None

    def prepare(self, case: Any, inputs: Any) -> Callable[[], Any]:
        call = partial(_attention, inputs, _queries(case, inputs), **_options(case, inputs))

        def output(*caches: Any) -> Any:
            return call(*caches)[0][:, :, : case.heads]

        return inputs.rotation(output)


def _padded(heads: int) -> int:
    return next(each for each in HEADS if each >= heads)


def _queries(case: Any, inputs: Any) -> Any:
    padding = _padded(case.heads) - case.heads
    return torch.nn.functional.pad(inputs.q, (0, 0, 0, padding)).contiguous()


def _options(case: Any, inputs: Any) -> dict[str, Any]:
    """What does not change from copy to copy."""
    metadata, _ = flash_mla.get_mla_metadata()
    options = {"tile_scheduler_metadata": metadata, "indices": inputs.window_indices()}
    if inputs.sinks is not None:
        padding = _padded(case.heads) - case.heads
        options["attn_sink"] = torch.nn.functional.pad(inputs.sinks, (0, padding))
    if case.compressed:
        lists = inputs.first_indices() if inputs.indices is None else inputs.indices
        options["extra_indices_in_kvcache"] = lists
    return options


def _attention(
    inputs: Any, q: Any, window_rows: Any, compressed_rows: Any, **options: Any
) -> tuple[Any, Any]:
    if compressed_rows is not None:
        options["extra_k_cache"] = _cache(compressed_rows)
    return flash_mla.flash_mla_with_kvcache(
        q,
        _cache(window_rows),
        None,  # block_table
        None,  # cache_seqlens
        q.shape[-1],
        is_fp8_kvcache=True,
        **options,
    )


def _cache(rows: Any) -> Any:
    """(pages, page_size, 1, 584), as FlashMLA has it."""
    return rows.view(torch.float8_e4m3fn)[:, :, None]


def peers(device: str) -> list[Peer]:
    return [FlashMla()] if device.startswith("cuda") else []
