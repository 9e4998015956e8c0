"""This library's kernels, each an entrant of its own, and so are their variants."""

from collections.abc import Callable
from functools import partial
from typing import Any

import tilewright
from tilewright._kernels import dsv4_problem_of
from tilewright.bench.peers import Peer
from tilewright.bench.peers.tilewright_kernel import TilewrightKernel, entrants


class TilewrightDsv4(TilewrightKernel):
    def problem_of(self, case: Any) -> Any:
        return dsv4_problem_of(case.to_json())

    def prepare(self, case: Any, inputs: Any) -> Callable[[], Any]:
        return inputs.rotation(partial(self._attention, inputs), out=inputs.new_output())

    def lse(self, case: Any, inputs: Any) -> Any:
        return self._attention(inputs, *inputs.caches[0], return_lse=True)[1]

    def _attention(
        self, inputs: Any, window_rows: Any, compressed_rows: Any, **options: Any
    ) -> Any:
        return tilewright.dsv4_attention(
            inputs.q,
            window=_window(inputs, window_rows),
            compressed=_compressed(inputs, compressed_rows),
            sinks=inputs.sinks,
            kernel=self.kernel.name,
            **inputs.rotation_back,
            **options,
        )


def _window(inputs: Any, rows: Any) -> tilewright.Dsv4Scope | None:
    if rows is None:
        return None
    return tilewright.Dsv4Scope(
        rows,
        range_begin=inputs.window_begin,
        range_end=inputs.window_end,
        block_table=inputs.window_table,
        most_keys=inputs.case.window,
    )


def _compressed(inputs: Any, rows: Any) -> tilewright.Dsv4Scope | None:
    if rows is None:
        return None
    if inputs.indices is not None:
        return tilewright.Dsv4Scope(rows, indices=inputs.indices)
    end, table = inputs.compressed_end, inputs.compressed_table
    return tilewright.Dsv4Scope(rows, range_end=end, block_table=table)


def peers(device: str) -> list[Peer]:
    return entrants("dsv4_attention", device, TilewrightDsv4)
