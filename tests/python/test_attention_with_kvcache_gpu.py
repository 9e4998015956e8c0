"""attention_with_kvcache() on CUDA tensors of PyTorch. Skipped where there is no GPU for it."""

import pytest

import tilewright
from reference import ERROR_LIMITS, relative_error
from tilewright.flash_attn import flash_attn_with_kvcache

try:
    import torch
except ImportError:
    torch = None

pytestmark = pytest.mark.skipif(
    torch is None or not torch.cuda.is_available(), reason="needs PyTorch and a CUDA device"
)

PAGE = 16


@pytest.fixture
def kernels(ran):
    """The names of those that run here."""
    rows = [row for row in tilewright.kernels() if row.operation == "attention_with_kvcache"]
    return ran([row.name for row in rows if row.device == "cuda" and not row.why_not], "kernels")


def make_call(q_len=1):
    """A call's tensors: three sequences in pages in random order, of 8 heads and 2 of keys."""
    generator = torch.Generator(device="cuda").manual_seed(0)
    options = {"generator": generator, "device": "cuda", "dtype": torch.bfloat16}
    q = torch.randn((3, q_len, 8, 128), **options)
    k_cache, v_cache = torch.randn((2, 150, PAGE, 2, 128), **options)
    table = torch.randperm(150, generator=generator, device="cuda").int().reshape(3, 50)
    lengths = torch.tensor([700, 3, 129], dtype=torch.int32, device="cuda")
    return {
        "q": q,
        "k_cache": k_cache,
        "v_cache": v_cache,
        "cache_seqlens": lengths,
        "block_table": table,
    }


def on_the_cpu(call):
    """The call in FP32."""
    return {name: x.float().cpu() if x.is_floating_point() else x.cpu() for name, x in call.items()}


def expect_close(out, call, **options):
    expected = tilewright.attention_with_kvcache(**on_the_cpu(call), **options)
    assert relative_error(out.float().cpu(), expected.double().numpy()) <= ERROR_LIMITS["bfloat16"]


@pytest.mark.parametrize("q_len", [1, 3])
def test_agrees_with_the_cpu(kernels, q_len):
    call = make_call(q_len)
    _, expected_lse = tilewright.attention_with_kvcache(
        **on_the_cpu(call), causal=True, return_lse=True
    )
    for kernel in kernels:
        out, lse = tilewright.attention_with_kvcache(
            **call, causal=True, kernel=kernel, return_lse=True, check_values=True
        )
        expect_close(out, call, causal=True)
        torch.testing.assert_close(lse.cpu(), expected_lse, rtol=0, atol=1e-3)


@pytest.mark.parametrize("q_len", [1, 3])
def test_shared_prefixes_agree_with_the_cpu(kernels, q_len):
    call = make_call(q_len)
    for name, values in (
        ("cache_seqlens", [700, 650, 640]),
        ("prefix_groups", [0, 2, 3]),
        ("prefix_seqlens", [640, 5]),
    ):
        call[name] = torch.tensor(values, dtype=torch.int32, device="cuda")
    out = tilewright.attention_with_kvcache(**call, causal=True, check_values=True)
    expect_close(out, call, causal=True)


def test_a_captured_call_takes_other_lengths(kernels):
    for kernel in kernels:
        call = make_call()
        out = torch.empty_like(call["q"])
        tilewright.attention_with_kvcache(**call, kernel=kernel, out=out)  # sets the kernel up
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            tilewright.attention_with_kvcache(**call, kernel=kernel, out=out)
        call["cache_seqlens"].copy_(torch.tensor([5, 800, 64], dtype=torch.int32))
        graph.replay()
        torch.cuda.synchronize()
        expect_close(out, call)


def test_flash_attentions_function_takes_a_number():
    call = make_call()
    call["page_table"] = call.pop("block_table")
    call["cache_seqlens"] = 100
    out = flash_attn_with_kvcache(**call)
    call["cache_seqlens"] = torch.full((3,), 100, dtype=torch.int32, device="cuda")
    assert torch.equal(out, flash_attn_with_kvcache(**call))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("config", "head_dim", "group"),
    [(15, 64, 8), (16, 64, 16), (17, 64, 32), (19, 128, 8), (20, 128, 16), (21, 128, 32)],
)
def test_an_e4m3_cache_gives_the_bits_of_its_widened_one(config, head_dim, group, dtype):
    """In configs whose GEMMs have keys as rows, with descales that are powers of two."""
    dtype = getattr(torch, dtype)
    generator = torch.Generator(device="cuda").manual_seed(config)
    options = {"generator": generator, "device": "cuda"}
    q = torch.randn((2, 1, 2 * group, head_dim), **options).to(dtype)
    coded = torch.randn((2, 2, 700, 2, head_dim), **options).to(torch.float8_e4m3fn)
    widened = coded.to(dtype) * 0.25
    call = {
        "q": q,
        "cache_seqlens": torch.tensor([700, 130], dtype=torch.int32, device="cuda"),
        "kernel": f"decode/{config}",
        "return_lse": True,
    }
    descale = torch.full((1,), 0.25, device="cuda")
    out, lse = tilewright.attention_with_kvcache(
        k_cache=coded[0], v_cache=coded[1], k_descale=descale, v_descale=descale, **call
    )
    expected, expected_lse = tilewright.attention_with_kvcache(
        k_cache=widened[0], v_cache=widened[1], **call
    )
    assert torch.equal(out, expected)
    assert torch.equal(lse, expected_lse)
