"""When a GEMM may read a packed weight before the launches queued ahead of it have ended."""

from typing import NamedTuple

import torch
from torch import Tensor


class Launch(NamedTuple):
    """What is known of one GEMM before it is queued."""

    written: tuple[int, int] | None  # the weight's address and PyTorch's count of its writes
    stream: int | None  # None in a CUDA graph
    is_early: bool


class EarlyReads:
    """Whether GEMMs with one weight may read it early.

    They may on a stream on which one of them came after the launches before it, and so after
    whatever wrote the weight. In a CUDA graph they may where that is so of any stream: what a graph
    holds comes after all that was queued before the graph.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """To be called when something other than a PyTorch operator has written the weight."""
        self._written: tuple[int, int] | None = None
        self._streams: set[int] = set()

    def next_launch(self, weight: Tensor) -> Launch:
        if not weight.is_cuda or weight.is_inference():  # whose writes go uncounted
            return Launch(None, None, False)
        written = weight.data_ptr(), weight._version
        is_known = written == self._written
        if torch.cuda.is_current_stream_capturing():
            return Launch(written, None, is_known)
        stream = torch.cuda.current_stream(weight.device).cuda_stream
        return Launch(written, stream, is_known and stream in self._streams)

    def launched(self, launch: Launch) -> None:
        """Notes that the GEMM of `launch` is queued."""
        if launch.stream is None:
            return
        if launch.written != self._written:
            self._written, self._streams = launch.written, set()
        self._streams.add(launch.stream)
