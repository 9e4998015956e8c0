"""FlashAttention-3's functions: the positions of their arguments, and what is refused."""

import numpy
import pytest

import tilewright
from tilewright import InvalidArgumentError, UnsupportedError
from tilewright.flash_attn import flash_attn_func, flash_attn_varlen_func

CU_SEQLENS = numpy.int32([0, 3, 33])


@pytest.fixture
def packed(make_qkv):
    return [x[0] for x in make_qkv(batch=1, q_len=33, kv_len=33)]


def test_dense_arguments_by_position(make_qkv):
    q, k, v = make_qkv()
    expected = tilewright.attention(
        q, k, v, softmax_scale=0.2, causal=True, window_size=(9, -1), softcap=1.5, return_lse=True
    )
    actual = flash_attn_func(
        *(q, k, v, 0.2, True, None, None, None, None, (9, -1), 0, 1.5, 1, None, False, 0, True)
    )
    for x, y in zip(actual, expected, strict=True):
        assert (x == y).all()
    assert isinstance(flash_attn_func(q, k, v), numpy.ndarray)


@pytest.mark.parametrize("zero", [0.0, 0, -0.0])
def test_a_scale_of_0_is_taken_for_another_versions_dropout(make_qkv, packed, refused, zero):
    q, k, v = make_qkv()
    calls = (
        lambda: flash_attn_func(q, k, v, zero),
        lambda: flash_attn_func(q, k, v, softmax_scale=zero),
        lambda: flash_attn_varlen_func(*packed, CU_SEQLENS, CU_SEQLENS, 30, 30, softmax_scale=zero),
    )
    for call in calls:
        with refused(InvalidArgumentError, "softmax_scale", "dropout_p in this place"):
            call()
    mean = v.repeat(2, axis=2).mean(1, keepdims=True)
    out = tilewright.attention(q, k, v, softmax_scale=zero)
    numpy.testing.assert_allclose(out, numpy.broadcast_to(mean, out.shape), atol=1e-6)


def test_arguments_that_steer_speed_alone_are_passed_over(make_qkv, packed):
    steering = {"num_splits": 3, "pack_gqa": True, "deterministic": True, "sm_margin": 8}
    q, k, v = make_qkv()
    assert (flash_attn_func(q, k, v, **steering) == flash_attn_func(q, k, v)).all()
    lengths = (CU_SEQLENS, CU_SEQLENS, 30, 30)
    out = flash_attn_varlen_func(*packed, *lengths, **steering)
    assert (out == flash_attn_varlen_func(*packed, *lengths)).all()


def test_packed_arguments_by_position(packed):
    seqused_k = numpy.int32([2, 30])
    expected = tilewright.attention(
        *packed,
        cu_seqlens_q=CU_SEQLENS,
        cu_seqlens_k=CU_SEQLENS,
        seqused_k=seqused_k,
        softmax_scale=0.2,
        causal=True,
        return_lse=True,
    )
    actual = flash_attn_varlen_func(
        *(*packed, CU_SEQLENS, CU_SEQLENS, 30, 30, None, seqused_k, 0.2, True),
        return_attn_probs=True,
    )
    for x, y in zip(actual, expected, strict=True):
        assert (x == y).all()


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("qv", 1),
        ("q_descale", 1),
        ("k_descale", 1),
        ("v_descale", 1),
        ("attention_chunk", 64),
    ],
)
def test_what_is_missing_is_refused_by_name(make_qkv, packed, argument, value):
    with pytest.raises(UnsupportedError, match=f"{argument}: is not supported"):
        flash_attn_func(*make_qkv(), **{argument: value})
    with pytest.raises(UnsupportedError, match=f"{argument}: is not supported"):
        flash_attn_varlen_func(*packed, CU_SEQLENS, CU_SEQLENS, 30, 30, **{argument: value})


def test_used_lengths_of_queries_are_refused(packed):
    with pytest.raises(UnsupportedError, match="seqused_q: is not supported"):
        flash_attn_varlen_func(*packed, CU_SEQLENS, CU_SEQLENS, 30, 30, seqused_q=CU_SEQLENS[1:])
