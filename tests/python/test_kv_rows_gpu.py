"""KV rows and RoPE on CUDA tensors. Skipped where there is no GPU."""

import pytest

import tilewright

try:
    import torch
except ImportError:
    torch = None

pytestmark = pytest.mark.skipif(
    torch is None or not torch.cuda.is_available(), reason="needs PyTorch and a CUDA device"
)

PAGES, PAGE_SIZE, TOKENS, DIMS = 40, 64, 2000, 512
ROW_BYTES = {"bf16": None, "e4m3_bf16": 584, "e4m3": 528, "e2m1": 288}


def cache(row_format):
    if ROW_BYTES[row_format] is None:
        return torch.zeros(PAGES, PAGE_SIZE, DIMS, dtype=torch.bfloat16)
    return torch.zeros(PAGES, PAGE_SIZE, ROW_BYTES[row_format], dtype=torch.uint8)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("row_format", ROW_BYTES)
def test_the_gpu_gives_the_cpus_bytes(row_format, dtype):
    x = (4 * torch.randn(TOKENS, DIMS)).to(getattr(torch, dtype))
    slots = torch.randperm(PAGES * PAGE_SIZE)[:TOKENS]
    slots[::7] = -1
    on_cpu, on_gpu = cache(row_format), cache(row_format).cuda()
    tilewright.quantize_kv_rows(x, on_cpu, slots)
    tilewright.quantize_kv_rows(x.cuda(), on_gpu, slots.cuda(), check_values=True)
    assert torch.equal(on_gpu.cpu(), on_cpu)
    outs = [torch.zeros(TOKENS, DIMS, dtype=x.dtype, device=device) for device in ("cpu", "cuda")]
    tilewright.dequantize_kv_rows(on_cpu, slots, out=outs[0])
    tilewright.dequantize_kv_rows(on_gpu, slots.cuda(), out=outs[1])
    assert torch.equal(outs[1].cpu(), outs[0])


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("inverse", [True, False])
def test_rotation(interleaved, inverse):
    cos, sin = (torch.from_numpy(table) for table in tilewright.rope_tables(5000))
    x = torch.randn(TOKENS, 8, DIMS).bfloat16()
    positions = torch.randint(0, 5000, (TOKENS,))
    options = {"interleaved": interleaved, "inverse": inverse}
    expected = tilewright.rope(x, cos, sin, positions, **options)
    arguments = [tensor.cuda() for tensor in (x, cos, sin, positions)]
    assert torch.equal(tilewright.rope(*arguments, **options).cpu(), expected)
    tilewright.rope(*arguments, **options, out=arguments[0])
    assert torch.equal(arguments[0].cpu(), expected)


def test_a_step_compiles():
    cos, sin = (torch.from_numpy(table).cuda() for table in tilewright.rope_tables(64))

    def step(x, rows, slots, positions):
        tilewright.quantize_kv_rows(tilewright.rope(x, cos, sin, positions), rows, slots)
        return tilewright.dequantize_kv_rows(rows, slots) * 2

    x = torch.randn(8, DIMS, device="cuda").bfloat16()
    slots, positions = torch.arange(8, device="cuda"), torch.arange(8, device="cuda")
    caches = [cache("e4m3_bf16").cuda() for _ in range(2)]
    expected = step(x, caches[0], slots, positions)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, caches[1], slots, positions), expected)
    assert torch.equal(caches[0], caches[1])
