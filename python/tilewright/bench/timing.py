"""Times one launch at a time: by CUDA events on a GPU, by the host's clock on a CPU."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

REST_S = 0.01  # OpenMP's threads of one library stop spinning before another's start
FIRST_LEAD_CYCLES = 500_000
MOST_LEAD_CYCLES = 64_000_000


@dataclass
class Timing:
    """The samples of one implementation on one case."""

    samples_us: list[float] = field(default_factory=list)
    clocks_mhz: list[float] = field(default_factory=list)
    powers_w: list[float] = field(default_factory=list)

    @property
    def total_s(self) -> float:
        return sum(self.samples_us) * 1e-6

    @property
    def median_us(self) -> float:
        return statistics.median(self.samples_us)

    @property
    def p10_p90_us(self) -> tuple[float, float]:
        if len(self.samples_us) == 1:
            return self.samples_us[0], self.samples_us[0]
        tenths = statistics.quantiles(self.samples_us, n=10, method="inclusive")
        return tenths[0], tenths[-1]


class CpuTimer:
    """perf_counter around each call."""

    cold_l2 = False

    def sample(self, call: Callable[[], Any], read: Callable[[], Any]) -> tuple[float, Any]:
        """(µs of the call, what `read` returned after it)."""
        time.sleep(REST_S)
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e6, read()

    def synchronize(self) -> None:
        pass


class CudaTimer:
    """CUDA events around each call, on PyTorch's current stream.

    The device first spins for a while, so that the call is queued before the device gets to it and
    the host's overhead is not timed. A sample for which the host was late all the same is thrown
    away, and the spin is lengthened, up to MOST_LEAD_CYCLES.
    """

    def __init__(self, device: str, flush_l2: bool):
        import torch

        self.cuda = torch.cuda
        self.cuda.set_device(torch.device(device))
        self.cold_l2 = flush_l2
        self.lead_cycles = FIRST_LEAD_CYCLES
        l2_bytes = self.cuda.get_device_properties(device).L2_cache_size
        self.larger_than_l2 = torch.empty(2 * l2_bytes, dtype=torch.uint8, device=device)

    def sample(self, call: Callable[[], Any], read: Callable[[], Any]) -> tuple[float, Any]:
        """(µs of the call, what `read` returned while it ran)."""
        while True:
            start, end = (self.cuda.Event(enable_timing=True) for _ in range(2))
            self.cuda._sleep(self.lead_cycles)
            if self.cold_l2:
                self.larger_than_l2.zero_()
            start.record()
            call()
            end.record()
            host_was_late = start.query()
            reading = read()
            end.synchronize()
            if not host_was_late or self.lead_cycles > MOST_LEAD_CYCLES:
                return start.elapsed_time(end) * 1e3, reading
            self.lead_cycles *= 2

    def synchronize(self) -> None:
        self.cuda.synchronize()
