"""NVFP4 on CUDA tensors: quantising, its inverse, packed weights. Skipped where there is no GPU."""

import pytest

import tilewright

try:
    import torch
except ImportError:
    torch = None

pytestmark = pytest.mark.skipif(
    torch is None or not torch.cuda.is_available(), reason="needs PyTorch and a CUDA device"
)

ENCODE = {"global_scale_kind": "encode"}


def as_bytes(tensor):
    return tensor.contiguous().view(torch.uint8).cpu()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("scale_layout", ["linear", "swizzled"])
@pytest.mark.parametrize("kind", ["encode", "decode"])
def test_the_gpu_gives_the_cpus_bytes(dtype, scale_layout, kind):
    x = torch.randn(300, 1040).to(getattr(torch, dtype))
    options = {"scale_layout": scale_layout, "global_scale_kind": kind}
    on_cpu = tilewright.quantize_nvfp4(x, **options)
    on_gpu = tilewright.quantize_nvfp4(x.cuda(), **options)
    for gpu, cpu in zip(on_gpu, on_cpu, strict=True):
        assert gpu.is_cuda and gpu.dtype == cpu.dtype
        assert torch.equal(as_bytes(gpu), as_bytes(cpu))
    out = [
        tilewright.dequantize_nvfp4(*tensors, dtype=dtype, **options)
        for tensors in (on_gpu, on_cpu)
    ]
    assert torch.equal(out[0].cpu(), out[1])


def test_scales_are_swizzled_there_and_back():
    scales = torch.randint(0, 127, (200, 37), dtype=torch.uint8, device="cuda")
    swizzled = tilewright.swizzle_scales(scales)
    assert torch.equal(swizzled.cpu(), tilewright.swizzle_scales(scales.cpu()))
    assert torch.equal(tilewright.unswizzle_scales(swizzled, 200, 37), scales)


@pytest.mark.parametrize("scale_layout", ["linear", "swizzled"])
def test_weights_are_packed_there_and_back(scale_layout):
    options = {"scale_layout": scale_layout}
    codes, scales, _ = tilewright.quantize_nvfp4(torch.randn(200, 592), **ENCODE, **options)
    packed = tilewright.prepack_nvfp4_weight(codes.cuda(), scales.cuda(), **options)
    on_cpu = tilewright.prepack_nvfp4_weight(codes, scales, **options)
    assert torch.equal(packed.cpu(), on_cpu)
    on_gpu = tilewright.unpack_nvfp4_weight(packed, 200, 592, **options)
    for gpu, cpu in zip(on_gpu, (codes, scales), strict=True):
        assert gpu.is_cuda and torch.equal(as_bytes(gpu), as_bytes(cpu))


def test_a_side_stream_and_a_graph():
    x = torch.randn(512, 1024, device="cuda").bfloat16()
    expected = tilewright.quantize_nvfp4(x, **ENCODE)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    on_stream = tilewright.quantize_nvfp4(x, **ENCODE, stream=stream)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = tilewright.quantize_nvfp4(x, **ENCODE)
    graph.replay()
    torch.cuda.synchronize()
    for results in (on_stream, captured):
        for actual, right in zip(results, expected, strict=True):
            assert torch.equal(as_bytes(actual), as_bytes(right))


def test_misaligned_rows_are_refused():
    x = torch.zeros(4, 72, device="cuda", dtype=torch.bfloat16)[:, 4:68]
    with pytest.raises(tilewright.InvalidArgumentError, match="x: starts 8 bytes past"):
        tilewright.quantize_nvfp4(x, **ENCODE)


def packed_weight(n=256, k=512):
    """A packed weight, and what gemm_nvfp4() is told of its global scale."""
    weight = torch.randn(n, k, device="cuda")
    codes, scales, global_scale = tilewright.quantize_nvfp4(weight, **ENCODE)
    packed = tilewright.prepack_nvfp4_weight(codes, scales)
    return packed, {"global_scale_b": global_scale, "global_scale_b_kind": "encode", "n": n}


@pytest.mark.parametrize("m", [1, 40, 300])
def test_gemms_of_expanded_tensors(m):
    weight, scaled = packed_weight()
    a = torch.randn(m, 512, device="cuda").bfloat16()
    expected = tilewright.gemm_nvfp4(a, weight, **scaled)
    batch = tilewright.gemm_nvfp4(a.expand(3, m, 512), weight.expand(3, *weight.shape), **scaled)
    assert torch.equal(batch, expected.expand(3, m, 256))
    rows = tilewright.gemm_nvfp4(a[:1].expand(m, 512), weight, **scaled)
    assert torch.equal(rows, rows[:1].expand(m, 256))


# The latter two have stream-K tiles: a replay finds the flags as the launch before left them.
@pytest.mark.parametrize(
    ("m", "n", "k"), [(4, 256, 512), (300, 256, 512), (40, 336, 4096), (128, 336, 4096)]
)
def test_a_graph_of_gemms_with_nvfp4_activations(m, n, k):
    weight, scaled = packed_weight(n, k)
    activations = torch.randn(m, k, device="cuda")
    codes, sfa, global_scale_a = tilewright.quantize_nvfp4(activations, **ENCODE)
    scaled |= {"sfa": sfa, "global_scale_a": global_scale_a, "global_scale_a_kind": "encode"}
    expected = tilewright.gemm_nvfp4(codes, weight, **scaled)
    del scaled["n"]
    out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tilewright.gemm_nvfp4(codes, weight, **scaled, out=out)
    for _ in range(3):
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, expected)
