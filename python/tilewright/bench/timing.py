"""Times launches one by one or back to back, by CUDA events or by the host's clock."""

import argparse
import itertools
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

REST_S = 0.01  # until OpenMP's threads of one library no longer spin while another's run
FIRST_LEAD_CYCLES = 500_000
MOST_LEAD_CYCLES = 64_000_000


@dataclass
class Timing:
    """The samples of one implementation on one case, each the mean of so many launches."""

    launches: int = 1
    samples_us: list[float] = field(default_factory=list)
    clocks_mhz: list[float] = field(default_factory=list)
    powers_w: list[float] = field(default_factory=list)

    @property
    def total_s(self) -> float:
        return self.launches * sum(self.samples_us) * 1e-6

    @property
    def median_us(self) -> float:
        return statistics.median(self.samples_us)

    @property
    def p10_p90_us(self) -> tuple[float, float]:
        if len(self.samples_us) == 1:
            return self.samples_us[0], self.samples_us[0]
        tenths = statistics.quantiles(self.samples_us, n=10, method="inclusive")
        return tenths[0], tenths[-1]


class Rotation:
    """Calls that do the same with copies of their own of a weight or a KV cache, one after the
    other.

    Between two reads of a copy, all others are read: where those are larger than the L2 cache, a
    copy comes from memory each time, as in a model, whose other layers were at work meanwhile.
    Nothing has to be flushed, so activations, code and the cache's state are as in use, and no
    dirty lines are written back during the measurement.
    """

    def __init__(self, calls: list[Callable[[], Any]]):
        self.period = len(calls)
        self.calls = itertools.cycle(calls)

    def __call__(self) -> Any:
        return next(self.calls)()


def copies_to_rotate(size_bytes: int, between_bytes: int) -> int:
    """How many copies of that size lie at least so many bytes apart when read in turn."""
    return 1 + math.ceil(between_bytes / size_bytes)


class Timer:
    """What a race asks of the timers below."""

    cold_by: str | None = None
    launches = 1
    has_series = False  # back-to-back launches, whose mean is a sample
    is_graph = False
    has_host = False  # the host's time counts, too

    def prepare(self, call: Callable[[], Any], launches: int) -> tuple[Callable[[], Any], int]:
        """(what to call, how many launches to ask sample() for)."""
        return call, launches


class CpuTimer(Timer):
    """perf_counter around each call."""

    def sample(
        self, call: Callable[[], Any], read: Callable[[], Any], launches: int
    ) -> tuple[list[float], Any]:
        """(µs of each call, what `read` returned after them)."""
        time.sleep(REST_S)
        return [self._time(call) for _ in range(launches)], read()

    def _time(self, call: Callable[[], Any]) -> float:
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e6

    def synchronize(self) -> None:
        pass


class CudaTimer(Timer):
    """CUDA events around each call, on PyTorch's current stream.

    The device first spins for a while, so that the calls are queued before the device gets to them
    and the host's overhead is not timed. Samples for which the host was late all the same are
    thrown away, and the spin is lengthened, up to MOST_LEAD_CYCLES.

    cold_by  "flush": a buffer larger than the L2 cache is written before the call.
             "rotation": the calls are a Rotation, and there is nothing to do here.
             None: whatever a call left in the cache, the next finds there
    launches how many calls are queued behind one spin; 1 with "flush"
    """

    def __init__(self, device: str, cold_by: str | None, launches: int = 1):
        import torch

        self.cuda = torch.cuda
        self.cuda.set_device(torch.device(device))
        self.cold_by = cold_by
        self.launches = launches
        self.lead_cycles = FIRST_LEAD_CYCLES
        if cold_by == "flush":
            l2_bytes = l2_cache_bytes(device)
            self.larger_than_l2 = torch.empty(2 * l2_bytes, dtype=torch.uint8, device=device)

    def sample(
        self, call: Callable[[], Any], read: Callable[[], Any], launches: int
    ) -> tuple[list[float], Any]:
        """(µs of each call, what `read` returned while they ran)."""
        while True:
            events = [self.cuda.Event(enable_timing=True) for _ in range(launches + 1)]
            self.cuda._sleep(self.lead_cycles)
            if self.cold_by == "flush":
                self.larger_than_l2.zero_()
            events[0].record()
            for event in events[1:]:
                call()
                event.record()
            host_was_late = events[0].query()
            reading = read()
            events[-1].synchronize()
            if not host_was_late or self.lead_cycles > MOST_LEAD_CYCLES:
                pairs = itertools.pairwise(events)
                return [start.elapsed_time(end) * 1e3 for start, end in pairs], reading
            self.lead_cycles *= 2

    def synchronize(self) -> None:
        self.cuda.synchronize()


class CudaSeriesTimer(CudaTimer):
    """CUDA events before and after a series of back-to-back launches. A sample is their mean time.

    The launches follow each other, as the layers of a model do. An event between two launches takes
    time by itself, and keeps the second from being set up while the first is at work. Another
    series goes before the first event, so that the timed one begins with the device at work.
    """

    has_series = True

    def prepare(self, call: Callable[[], Any], launches: int) -> tuple[Callable[[], Any], int]:
        """(what queues a series, its number of launches)."""

        def series() -> None:
            for _ in range(launches):
                call()

        return series, launches

    def sample(
        self, call: Callable[[], Any], read: Callable[[], Any], launches: int
    ) -> tuple[list[float], Any]:
        """(the mean µs of a series' launches, what `read` returned while they ran)."""
        (_, total_us), reading = super().sample(call, read, 2)
        return [total_us / launches], reading


@dataclass
class CapturedSeries:
    """A series of calls in a CUDA graph, which holds the addresses of their tensors, but not the
    tensors: `series` does."""

    graph: Any
    series: Callable[[], Any]

    def __call__(self) -> None:
        self.graph.replay()


class CudaGraphTimer(CudaSeriesTimer):
    """The same of series that are CUDA graphs."""

    is_graph = True

    def prepare(self, call: Callable[[], Any], launches: int) -> tuple[Callable[[], Any], int]:
        """(what replays a graph, its number of launches: so many, or a few more)."""
        period = call.period if isinstance(call, Rotation) else 1
        series, launches = super().prepare(call, math.ceil(launches / period) * period)
        graph, side = self.cuda.CUDAGraph(), self.cuda.Stream()
        # The capture ends, and the stream is left, even if a call raises an error.
        capture = self.cuda.graph(graph, stream=side, capture_error_mode="thread_local")
        with self.cuda.stream(side), capture:
            series()
        replay = CapturedSeries(graph, series)
        replay()
        self.synchronize()
        return replay, launches


class CudaHostTimer(CudaSeriesTimer):
    """The host's clock around a series of calls and the device's work on them.

    There is no head start, so a call takes what the host or the device takes for it, whichever is
    longer.
    """

    has_host = True

    def sample(
        self, call: Callable[[], Any], read: Callable[[], Any], launches: int
    ) -> tuple[list[float], Any]:
        """(the mean µs of a series' launches, what `read` returned after them)."""
        self.synchronize()
        start = time.perf_counter()
        call()
        self.synchronize()
        total_us = (time.perf_counter() - start) * 1e6
        return [total_us / launches], read()


def l2_cache_bytes(device: str) -> int:
    import torch

    return torch.cuda.get_device_properties(device).L2_cache_size


TIMERS = {
    "series": CudaSeriesTimer,
    "graph": CudaGraphTimer,
    "alone": CudaTimer,
    "host": CudaHostTimer,
}
LAUNCHES = 20  # back to back, or queued behind one head start
HOST_LAUNCHES = 1000  # back to back, by the host's clock
CACHES_BETWEEN = 2  # L2 caches' bytes that are read between two reads of what rotates


def add_timed_argument(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--timed",
        choices=TIMERS,
        default=default,
        help=f"{LAUNCHES} back-to-back launches together; the same in a CUDA graph; each by "
        f"itself; {HOST_LAUNCHES} back to back by the host's clock, without a head start",
    )


def timer_of(timed: str, device: str, cold_by: str | None) -> CudaTimer:
    timer = TIMERS[timed]
    return timer(device, cold_by, HOST_LAUNCHES if timer.has_host else LAUNCHES)


def bytes_between(device: str) -> int:
    """The least that is read between two reads of what rotates, so that it comes from memory."""
    return CACHES_BETWEEN * l2_cache_bytes(device) if device.startswith("cuda") else 0
