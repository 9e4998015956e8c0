"""tilewright.flash_mla, beside the same in plain PyTorch."""

import pytest

from tilewright import Error, UnsupportedError
from tilewright.flash_mla import FlashMLASchedMeta, flash_mla_with_kvcache, get_mla_metadata

torch = pytest.importorskip("torch")

from dsv4_cases import attend, cache, ints, make_q, near, values
from test_dsv4_attention import DEVICES


def inputs(device="cpu", row_format="e4m3_bf16"):
    main = cache(row_format, 3, 64, device, seed=2)
    extra = cache(row_format, 5, 2, device, seed=3)
    return {
        "q": make_q(2, 2, 64, device),
        "k_cache": main[:, :, None],
        "block_table": None,
        "cache_seqlens": None,
        "head_dim_v": 512,
        "tile_scheduler_metadata": get_mla_metadata()[0],
        "is_fp8_kvcache": row_format != "bf16",
        "indices": ints([[[0, 191, -1], [64, 65, 3]], [[-1, -1, 7], [5, 5, 9]]], device),
        "attn_sink": torch.linspace(-3, 3, 64, device=device),
        "extra_k_cache": extra[:, :, None],
        "extra_indices_in_kvcache": ints([[[9, 8], [0, -1]], [[-1, 3], [2, 2]]], device),
        "topk_length": ints([3, 2], device),
        "extra_topk_length": ints([2, 1], device),
    }


def expected_of(call):
    def of_scope(rows, indices, lengths, b, i):
        count = indices.shape[2] if lengths is None else lengths[b]
        chosen = indices[b, i, :count].tolist()
        return values(rows.squeeze(2))[[slot for slot in chosen if slot >= 0]]

    def keys_of(b, i):
        main = of_scope(call["k_cache"], call["indices"], call.get("topk_length"), b, i)
        if call.get("extra_k_cache") is None:
            return main
        names = ("extra_k_cache", "extra_indices_in_kvcache", "extra_topk_length")
        return torch.cat([main, of_scope(*(call.get(name) for name in names), b, i)])

    out, _, lse = attend(call["q"], keys_of, call.get("attn_sink"))
    return out, torch.where(lse == -torch.inf, torch.inf, lse)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("row_format", ["e4m3_bf16", "e4m3", "bf16"])
def test_both_caches(row_format, device):
    call = inputs(device, row_format)
    out, lse = flash_mla_with_kvcache(**call)
    expected, expected_lse = expected_of(call)
    assert out.shape == (2, 2, 64, 512) and near(out, expected)
    assert lse.shape == (2, 64, 2) and lse.dtype == torch.float32
    assert torch.allclose(lse.cpu().double(), expected_lse, atol=1e-4)
    assert (lse[1, :, 0] == torch.inf).all() and (out[1, 0] == 0).all()  # a row without keys


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.float8_e4m3fn])
def test_one_cache_of_any_bytes(dtype):
    call = inputs()
    for name in [name for name in call if name.startswith("extra") or name == "attn_sink"]:
        del call[name]
    expected, expected_lse = expected_of(call)
    call["k_cache"] = call["k_cache"].view(dtype)
    given = torch.empty(2, 2, 64, 512)
    out, lse = flash_mla_with_kvcache(**call, out=given)
    assert out is given and near(out, expected)
    assert torch.allclose(lse.double(), expected_lse, atol=1e-4)


def test_arguments_are_in_flash_mlas_order():
    call = inputs()
    named, lse = flash_mla_with_kvcache(**call)
    first = ("q", "k_cache", "block_table", "cache_seqlens", "head_dim_v")
    leading = [call[name] for name in first] + [call["tile_scheduler_metadata"], None, None, False]
    rest = ("is_fp8_kvcache", "indices", "attn_sink", "extra_k_cache", "extra_indices_in_kvcache")
    lengths = ("topk_length", "extra_topk_length")
    placed, placed_lse = flash_mla_with_kvcache(
        *leading, *(call[name] for name in rest), *(call[name] for name in lengths)
    )
    assert torch.equal(named, placed) and torch.equal(lse, placed_lse)


def test_metadata_takes_anything():
    metadata, splits = get_mla_metadata(torch.ones(3), 64, 1, num_heads_q=64, topk=512)
    assert isinstance(metadata, FlashMLASchedMeta) and splits is None


@pytest.mark.parametrize(
    ("change", "argument", "words"),
    [
        ({"indices": None}, "indices", "dense attention is not served"),
        ({"head_dim_v": 256}, "head_dim_v", "must be 512"),
        ({"num_splits": 3}, "num_splits", "must be None"),
        ({"causal": True}, "causal", "must be False"),
        ({"is_fp8_kvcache": False}, "is_fp8_kvcache", "must be True where k_cache has uint8"),
        ({"k_cache": torch.zeros(2, 64, 1, 656, dtype=torch.uint8)}, "k_cache", "656"),
        ({"k_cache": torch.zeros(2, 64, 584, dtype=torch.uint8)}, "k_cache", "page_size, 1"),
        ({"k_cache": None}, "k_cache", "NoneType"),
        ({"extra_k_cache": None}, "extra_k_cache", "where extra_indices_in_kvcache is"),
        ({"extra_indices_in_kvcache": None}, "extra_indices_in_kvcache", "where extra_k_cache is"),
        (
            {"extra_k_cache": None, "extra_indices_in_kvcache": None},
            "extra_k_cache",
            "where extra_topk_length is",
        ),
        ({"topk_length": ints([1])}, "topk_length", "batch is 1"),
        ({"attn_sink": torch.zeros(63)}, "attn_sink", "heads is 63"),
        ({"q": torch.zeros(2, 2, 64, 576)}, "q", "head_dim is 576"),
        ({"q": torch.zeros(2, 9, 64, 512)}, "q", "at most 8"),
        ({"indices": ints([[[192, 0, 0]] * 2] * 2)}, "indices", "is 192 for token 0"),
    ],
)
def test_what_is_not_served_is_refused_by_name(change, argument, words):
    with pytest.raises(Error, match=words) as error:
        flash_mla_with_kvcache(**(inputs() | change))
    assert error.value.argument == argument


def test_gradients_are_refused():
    call = inputs()
    call["q"].requires_grad_()
    with pytest.raises(UnsupportedError, match="gradient"):
        flash_mla_with_kvcache(**call)
