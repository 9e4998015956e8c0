"""The timers: events in the place of CUDA's, and how many launches a race asks for."""

import contextlib
import itertools
import time
import types
import weakref
from functools import partial

import pytest

from test_bench import CASE, Scripted
from tilewright.bench.machine import CpuMachine
from tilewright.bench.race import Rules, race, to_line
from tilewright.bench.timing import (
    CudaGraphTimer,
    CudaHostTimer,
    CudaSeriesTimer,
    CudaTimer,
    Rotation,
)


class Device:
    """torch.cuda of a device whose clock goes on as calls are made; the host is late at first."""

    def __init__(self, late=0):
        self.us, self.late, self.log = 0.0, late, []

    def set_device(self, device):
        pass

    def _sleep(self, cycles):
        self.log.append(("sleep", cycles))

    def Stream(self):
        return None

    def stream(self, stream):
        return contextlib.nullcontext()

    def synchronize(self):
        pass

    def CUDAGraph(self):
        graph = types.SimpleNamespace()
        graph.replay = lambda: setattr(self, "us", self.us + graph.us)
        return graph

    @contextlib.contextmanager
    def graph(self, graph, stream, capture_error_mode):
        assert capture_error_mode == "thread_local"
        start = self.us
        try:
            yield
        finally:
            graph.us = self.us - start
            self.log.append("captured")

    def Event(self, enable_timing):
        device, event = self, types.SimpleNamespace()

        def query():
            device.late -= 1
            return device.late >= 0

        event.record = lambda: setattr(event, "us", device.us)
        event.query = query
        event.synchronize = lambda: None
        event.elapsed_time = lambda end: (end.us - event.us) / 1e3
        return event


@pytest.fixture
def device(monkeypatch):
    torch = pytest.importorskip("torch")
    device = Device()
    monkeypatch.setattr(torch, "cuda", device)
    return device


def test_launches_behind_one_head_start(device):
    timer = CudaTimer("cuda:0", "rotation", launches=3)
    durations = itertools.count(1.0)
    device.late = 1

    def call():
        device.us += next(durations)

    samples_us, reading = timer.sample(call, lambda: "read", 3)
    assert samples_us == pytest.approx([4, 5, 6])  # the first three were late
    assert reading == "read"
    (_, first), (_, second) = device.log
    assert second == 2 * first


def test_back_to_back_launches_share_their_time(device):
    timer = CudaSeriesTimer("cuda:0", "rotation", launches=3)
    durations = itertools.count(1.0)

    def call():
        device.us += next(durations)

    series, launches = timer.prepare(call, 3)
    assert (launches, device.us) == (3, 0)
    assert timer.sample(series, lambda: "read", launches) == (pytest.approx([5]), "read")


def test_launches_of_a_graph_share_their_time(device):
    timer = CudaGraphTimer("cuda:0", "rotation", launches=3)
    seen = []

    def call(us):
        device.us += us
        seen.append(us)

    rotation = Rotation([partial(call, 1.0), partial(call, 4.0)])
    replay, launches = timer.prepare(rotation, 3)
    assert (launches, seen) == (4, [1, 4, 1, 4])  # every copy as often as the others
    assert timer.sample(replay, lambda: "read", launches) == (pytest.approx([2.5]), "read")
    assert len(seen) == 4 and device.us == 40  # captured, replayed once, and twice for the sample


def test_a_graph_holds_the_tensors_of_its_calls(device):
    class Tensor:
        pass

    def call(tensor):
        device.us += 1

    tensor = Tensor()
    is_alive = weakref.ref(tensor)
    timer = CudaGraphTimer("cuda:0", "rotation", launches=2)
    replay, _ = timer.prepare(partial(call, tensor), 2)
    del tensor
    assert is_alive()
    replay()
    assert device.us == 6


def test_the_host_s_clock_runs_until_the_device_is_done(device, monkeypatch):
    timer = CudaHostTimer("cuda:0", "rotation", launches=4)
    clock = types.SimpleNamespace(us=0.0)
    queued = []

    def call():
        clock.us += 3
        queued.append(5)

    def synchronize():
        clock.us += sum(queued)
        queued.clear()

    device.synchronize = synchronize
    monkeypatch.setattr(time, "perf_counter", lambda: clock.us * 1e-6)
    series, launches = timer.prepare(call, 4)
    queued.append(1000)  # work from before is not timed
    assert timer.sample(series, lambda: "read", launches) == (pytest.approx([8]), "read")
    assert timer.has_host and timer.has_series


def test_a_capture_ends_where_a_call_raises_an_error(device):
    def call():
        raise RuntimeError("not in a graph")

    timer, rules = CudaGraphTimer("cuda:0", "rotation", launches=3), Rules(4, 0, 5, False, 0)
    calls = iter([lambda: None] * 4 + [call])
    peer = Scripted(call=lambda inputs: next(calls)())
    (entrant,) = race([peer], CASE, timer, CpuMachine(), rules)
    assert entrant.reason == "RuntimeError: not in a graph"
    assert device.log == ["captured"]


def test_a_flush_comes_before_the_first_event(device, monkeypatch):
    monkeypatch.setattr("tilewright.bench.timing.l2_cache_bytes", lambda device: 64)
    monkeypatch.setattr("torch.empty", lambda *size, **options: types.SimpleNamespace())
    timer = CudaTimer("cuda:0", "flush")
    timer.larger_than_l2.zero_ = lambda: setattr(device, "us", device.us + 1000)

    def call():
        device.us += 2

    assert timer.sample(call, lambda: None, 1)[0] == pytest.approx([2])


class QueueTimer:
    """Notes how many launches are asked for."""

    cold_by, launches = "rotation", 20

    def __init__(self, has_series=False):
        self.asked, self.has_series, self.is_graph, self.has_host = [], has_series, False, False

    def prepare(self, call, launches):
        return call, launches

    def sample(self, call, read, launches):
        self.asked.append(launches)
        return [1.0] * (1 if self.has_series else launches), read()

    def synchronize(self):
        pass


@pytest.mark.parametrize(("seconds", "asked"), [(0, [20] * 3), (0.06, [1] * 3)])
def test_slow_launches_are_queued_singly(seconds, asked):
    timer, rules = QueueTimer(), Rules(samples=60, gap_s=0, max_seconds=5, check=False, seed=0)
    peer = Scripted(call=lambda inputs: time.sleep(seconds))
    (entrant,) = race([peer], CASE, timer, CpuMachine(), rules)
    assert timer.asked == asked
    assert len(entrant.timing.samples_us) == sum(asked)
    assert entrant.timing.launches == 1


def test_a_row_is_a_sample():
    timer, rules = QueueTimer(has_series=True), Rules(4, 0, 5, False, 0)
    (entrant,) = race([Scripted(call=lambda inputs: None)], CASE, timer, CpuMachine(), rules)
    assert timer.asked == [20] * 4
    assert entrant.timing.samples_us == [1.0] * 4
    assert entrant.timing.total_s == pytest.approx(80e-6)
    line = to_line(entrant, CASE, "2026-01-31T12:34:56Z abc", timer, CpuMachine())
    assert (line["graph"], line["launches"]) == (False, 20)
