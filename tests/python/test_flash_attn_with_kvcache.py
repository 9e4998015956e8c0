"""FlashAttention-3's flash_attn_with_kvcache(): positions, lengths, and what is refused."""

import inspect

import numpy
import pytest

import tilewright
from tilewright import InvalidArgumentError, UnsupportedError
from tilewright.flash_attn import flash_attn_with_kvcache

# FlashAttention-3's arguments in its order.
ARGUMENTS = (
    *("q", "k_cache", "v_cache", "k", "v", "qv", "rotary_cos", "rotary_sin", "cache_seqlens"),
    *("cache_batch_idx", "cache_leftpad", "page_table", "cu_seqlens_q", "cu_seqlens_k_new"),
    *("max_seqlen_q", "rotary_seqlens", "q_descale", "k_descale", "v_descale", "softmax_scale"),
    *("causal", "window_size", "attention_chunk", "softcap", "rotary_interleaved"),
    *("scheduler_metadata", "num_splits", "pack_gqa", "sm_margin", "return_softmax_lse"),
)


@pytest.fixture
def call(make_qkv):
    q, k, v = make_qkv(batch=2, q_len=3, kv_len=40)
    return {"q": q, "k_cache": k, "v_cache": v}


def test_arguments_are_in_order():
    assert tuple(inspect.signature(flash_attn_with_kvcache).parameters) == ARGUMENTS


def test_every_argument_that_is_served(call, make_qkv):
    _, k, v = make_qkv(batch=2, kv_len=3, seed=2)
    cached = numpy.int32([30, 7])
    places = {"cache_seqlens": cached, "cache_batch_idx": numpy.int32([1, 0])}
    options = {"softmax_scale": 0.2, "causal": True, "window_size": (9, -1), "softcap": 1.5}
    leftpad = numpy.int32([2, 0])
    expected = tilewright.attention_with_kvcache(
        **call, **places, **options, leftpad_k=leftpad, k=k, v=v, return_lse=True
    )
    given = {"cache_leftpad": leftpad, "k": k, "v": v, "return_softmax_lse": True}
    ignored = {"scheduler_metadata": 1, "num_splits": 3, "pack_gqa": True, "max_seqlen_q": 3}
    ignored |= {"sm_margin": 8, "rotary_interleaved": False}
    actual = flash_attn_with_kvcache(**call, **places, **options, **given, **ignored)
    for x, y in zip(actual, expected, strict=True):
        assert (x == y).all()


def test_descales_of_all_three(call):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    codes = {name: x.astype(ml_dtypes.float8_e4m3fn) for name, x in call.items()}
    values = numpy.random.default_rng(5).uniform(0.5, 2, (3, 2, 2)).astype(numpy.float32)
    descales = dict(zip(("q_descale", "k_descale", "v_descale"), values, strict=True))
    lengths = numpy.int32([17, 40])
    out = flash_attn_with_kvcache(**codes, cache_seqlens=lengths, **descales)
    expected = tilewright.attention_with_kvcache(**codes, cache_seqlens=lengths, **descales)
    assert out.dtype.name == "bfloat16"
    assert (out == expected).all()


@pytest.mark.parametrize("cache_seqlens", [None, 40, 17, 0, numpy.int64(17), numpy.array(17)])
def test_lengths_as_one_number(call, cache_seqlens):
    lengths = numpy.full(2, 40 if cache_seqlens is None else cache_seqlens, numpy.int32)
    out = flash_attn_with_kvcache(**call, cache_seqlens=cache_seqlens)
    assert isinstance(out, numpy.ndarray)
    assert (out == tilewright.attention_with_kvcache(**call, cache_seqlens=lengths)).all()


def test_pages_and_packed_queries(call):
    pages = {name: call[name].reshape(10, 8, 2, 64) for name in ("k_cache", "v_cache")}
    table = numpy.arange(10, dtype=numpy.int32).reshape(2, 5)
    cu_seqlens = numpy.int32([0, 3, 6])
    out = flash_attn_with_kvcache(
        call["q"].reshape(6, 4, 64), **pages, page_table=table, cu_seqlens_q=cu_seqlens, causal=True
    )
    expected = flash_attn_with_kvcache(**call, causal=True)
    assert (out.reshape(expected.shape) == expected).all()


def test_packed_rows_are_appended(call, make_qkv):
    _, k, v = (x[0] for x in make_qkv(batch=1, kv_len=6, seed=3))
    cu_seqlens = numpy.int32([0, 3, 6])
    given = {"cu_seqlens_q": cu_seqlens, "cu_seqlens_k_new": cu_seqlens, "k": k, "v": v}
    call["q"] = call["q"].reshape(6, 4, 64)
    flash_attn_with_kvcache(**call, **given, cache_seqlens=5)
    assert (call["k_cache"][:, 5:8].reshape(6, 2, 64) == k).all()
    with pytest.raises(UnsupportedError, match="cu_seqlens_k_new: is another array"):
        flash_attn_with_kvcache(
            **call, **(given | {"cu_seqlens_k_new": cu_seqlens.copy()}), cache_seqlens=5
        )


def rotated(rows, angles, interleaved):
    """The first dims of rows (tokens, heads, dim), by angles (tokens, half of those dims)."""
    half = angles.shape[1]
    pairs = (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    first, second = pairs if interleaved else (slice(0, half), slice(half, 2 * half))
    cos, sin = numpy.cos(angles)[:, None], numpy.sin(angles)[:, None]
    result = rows.copy()
    result[..., first] = rows[..., first] * cos - rows[..., second] * sin
    result[..., second] = rows[..., second] * cos + rows[..., first] * sin
    return result


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
def test_queries_and_new_keys_are_rotated(call, make_qkv, interleaved, is_packed):
    _, k, v = make_qkv(batch=2, kv_len=3, seed=4)
    angles = numpy.random.default_rng(5).uniform(0, 6, (40, 16)).astype(numpy.float32)
    cached, options = numpy.int32([30, 7]), {"causal": True, "window_size": (12, 0)}
    q_rotated, k_rotated = (
        numpy.stack(
            [
                rotated(x[b], angles[first : first + 3], interleaved)
                for b, first in enumerate(cached)
            ]
        )
        for x in (call["q"], k)
    )
    caches = {name: call[name].copy() for name in ("k_cache", "v_cache")}
    expected = tilewright.attention_with_kvcache(
        q_rotated, **caches, cache_seqlens=cached, k=k_rotated, v=v, **options
    )
    given = {"q": call.pop("q"), "k": k, "v": v}
    if is_packed:
        given = {name: x.reshape(6, *x.shape[2:]) for name, x in given.items()}
        given["cu_seqlens_q"] = numpy.int32([0, 3, 6])
    tables = {"rotary_cos": numpy.cos(angles), "rotary_sin": numpy.sin(angles)}
    out = flash_attn_with_kvcache(
        **call, **given, **tables, **options, cache_seqlens=cached, rotary_interleaved=interleaved
    )
    numpy.testing.assert_allclose(out.reshape(expected.shape), expected, rtol=0, atol=1e-5)
    for name, cache in caches.items():
        numpy.testing.assert_allclose(call[name], cache, rtol=0, atol=1e-6)


def test_one_token_is_rotated_whether_causal_or_not(call, make_qkv):
    _, k, v = make_qkv(batch=2, kv_len=1, seed=4)
    angles = numpy.ones((40, 32), numpy.float32)
    given = {"q": call.pop("q")[:, :1], "k": k, "v": v, "cache_seqlens": 9}
    given |= {"rotary_cos": numpy.cos(angles), "rotary_sin": numpy.sin(angles)}
    outs = [flash_attn_with_kvcache(**call, **given, causal=causal) for causal in (False, True)]
    assert (outs[0] == outs[1]).all()


def test_several_tokens_at_one_position_are_refused(call):
    given = NEW_ROWS | TABLES | {"cache_seqlens": 1}
    with pytest.raises(UnsupportedError, match="rotary_cos: is given for several tokens without"):
        flash_attn_with_kvcache(**call, **given)


@pytest.mark.parametrize(
    "argument",
    ["qv", "rotary_seqlens", "attention_chunk"],
)
def test_what_is_missing_is_refused_by_name(call, argument):
    with pytest.raises(UnsupportedError, match=f"{argument}: is not supported"):
        flash_attn_with_kvcache(**call, **{argument: 8})


# What is given, the argument and a part of the message.
TABLES = dict.fromkeys(("rotary_cos", "rotary_sin"), numpy.ones((40, 16), numpy.float32))
NEW_ROWS = {x: numpy.zeros((2, 3, 2, 64), numpy.float32) for x in "kv"}
WRONG_CALLS = {
    "a negative length": ({"cache_seqlens": -1}, "cache_seqlens", "is -1, must be between 0"),
    "fewer tokens than none": ({"max_seqlen_q": -1}, "max_seqlen_q", "is -1, must be at least 0"),
    "a length beyond the caches": ({"cache_seqlens": 41}, "cache_seqlens", "between 0 and 40"),
    "no room for new rows": (
        {"cache_seqlens": 40} | NEW_ROWS,
        *("cache_seqlens", "is 40, must be between 0 and 37, the room in the caches"),
    ),
    "no length to append at": (
        NEW_ROWS,
        *("cache_seqlens", "is None, must be given where k is"),
    ),
    "a cache of rank 1": ({"k_cache": numpy.zeros(4, numpy.float32)}, "k_cache", "has rank 1"),
    "q of rank 0": ({"q": numpy.zeros((), numpy.float32)}, "q", "has rank 0"),
    "a table of rank 1": (
        {"page_table": numpy.zeros(2, numpy.int32)},
        *("page_table", "has rank 1, must have rank 2"),
    ),
    "a rotation without new keys": (TABLES, "rotary_cos", "must be None where k is"),
    "half of a rotation": (
        NEW_ROWS | {"rotary_sin": TABLES["rotary_sin"], "causal": True, "cache_seqlens": 1},
        *("rotary_sin", "must be absent where rotary_cos is absent"),
    ),
    "a rotation of too few positions": (
        NEW_ROWS
        | {name: x[:39] for name, x in TABLES.items()}
        | {"causal": True, "cache_seqlens": 37},
        *("rotary_cos", "has 39 positions, must have at least 40"),
    ),
    "padding of another batch": (
        {"cache_leftpad": numpy.zeros(3, numpy.int32)},
        *("cache_leftpad", "batch is 3, must equal q's 2"),
    ),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_wrong_call(call, refused, name):
    change, argument, message = WRONG_CALLS[name]
    with refused(InvalidArgumentError, argument, message, call["k_cache"], call["v_cache"]):
        flash_attn_with_kvcache(**(call | change))
