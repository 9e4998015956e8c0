"""When NVFP4Linear may read its weight beside the launch before it: by stand-ins, and on a GPU."""

import threading
import types

import pytest

import tilewright

torch = pytest.importorskip("torch")

from tilewright._early_reads import EarlyReads
from tilewright.torch import NVFP4Linear

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Gpu:
    """What EarlyReads asks PyTorch of a weight and of the device."""

    def __init__(self, monkeypatch):
        self.address, self.version, self.stream, self.is_capturing = 4096, 0, 7, False
        self.is_inference = False
        self.reads = EarlyReads()
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.is_capturing)
        monkeypatch.setattr(
            torch.cuda,
            "current_stream",
            lambda device: types.SimpleNamespace(cuda_stream=self.stream),
        )
        monkeypatch.setattr(torch.cuda, "synchronize", self.refuse)

    def refuse(self, *arguments):
        raise AssertionError("waits for the device")

    def call(self):
        """Whether a GEMM reads early."""
        weight = types.SimpleNamespace(
            is_cuda=True,
            is_inference=lambda: self.is_inference,
            data_ptr=lambda: self.address,
            _version=self.version,
            device="cuda:0",
        )
        launch = self.reads.next_launch(weight)
        self.reads.launched(launch)
        return launch.is_early


@pytest.fixture
def gpu(monkeypatch):
    return Gpu(monkeypatch)


def test_the_first_gemm_on_each_stream_waits(gpu):
    assert [gpu.call(), gpu.call(), gpu.call()] == [False, True, True]
    gpu.stream = 8
    assert [gpu.call(), gpu.call()] == [False, True]
    gpu.stream = 7
    assert gpu.call()


@pytest.mark.parametrize("change", ["address", "version"])
def test_a_weight_that_was_written_is_waited_for_again(gpu, change):
    gpu.call()
    setattr(gpu, change, getattr(gpu, change) + 1)
    assert [gpu.call(), gpu.call()] == [False, True]


def test_a_graph_reads_early_where_a_gemm_has_waited_outside(gpu):
    gpu.is_capturing = True
    assert [gpu.call(), gpu.call()] == [False, False]
    gpu.is_capturing = False
    assert not gpu.call()
    gpu.is_capturing, gpu.stream = True, 8
    assert [gpu.call(), gpu.call()] == [True, True]
    gpu.is_capturing = False
    assert not gpu.call()  # nothing has run on that stream
    gpu.is_capturing = True
    gpu.version += 1  # as by an operator that is captured
    assert [gpu.call(), gpu.call()] == [False, False]


def test_writes_that_are_not_counted_are_always_waited_for(gpu):
    gpu.is_inference = True
    assert [gpu.call(), gpu.call()] == [False, False]


def test_what_has_raised_was_no_gemm(gpu):
    gpu.reads.next_launch(types.SimpleNamespace(is_cuda=False))
    weight = types.SimpleNamespace(
        is_cuda=True, is_inference=lambda: False, data_ptr=lambda: 1, _version=0, device="cuda:0"
    )
    gpu.reads.next_launch(weight)
    assert not gpu.reads.next_launch(weight).is_early


def make_layer(n=512, k=512):
    codes, scales, global_scale = tilewright.quantize_nvfp4(
        torch.randn(n, k, device="cuda"), global_scale_kind="decode"
    )
    tensors = {"weight": codes, "weight_scale": scales, "weight_scale_2": global_scale}
    return NVFP4Linear.from_tensors(tensors)


@needs_cuda
def test_a_layers_first_call_beside_a_capture_in_another_thread():
    """Which any waiting for the device would make invalid."""
    x = torch.randn(16, 512, device="cuda").bfloat16()
    captured, first, warm = make_layer(), make_layer(), make_layer()
    expected = captured(x)
    ready, capturing, called = (threading.Event() for _ in range(3))
    results = []

    def call_first():
        with torch.cuda.stream(torch.cuda.Stream()):
            warm(x)  # whose memory the next call takes
            torch.cuda.current_stream().synchronize()
            ready.set()
            capturing.wait(60)
            results.append(first(x))
            called.set()

    thread = threading.Thread(target=call_first)
    torch.cuda.synchronize()
    thread.start()
    assert ready.wait(60)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.Stream()):  # torch.cuda.graph() would free the memory
        graph.capture_begin()
        capturing.set()
        called.wait(60)
        out = captured(x)
        graph.capture_end()
    thread.join()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, expected)
    assert len(results) == 1 and torch.equal(results[0], first(x))


@needs_cuda
def test_a_gemm_sees_what_pytorch_wrote_just_before():
    layer = make_layer(4096, 4096)
    x = torch.randn(1, 4096, device="cuda").bfloat16()
    other = make_layer(4096, 4096)
    weights = [layer.packed.clone(), other.packed.clone()]
    layer.global_scale_bits.copy_(other.global_scale_bits)
    expected = []
    for weight in weights:
        layer.packed.copy_(weight)
        torch.cuda.synchronize()
        expected.append(layer(x))
    torch.cuda.synchronize()
    assert not torch.equal(*expected)
    for i in range(2000):
        layer.packed.copy_(weights[i % 2])
        assert torch.equal(layer(x), expected[i % 2])
