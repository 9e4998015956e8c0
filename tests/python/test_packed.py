"""Packed sequences on the CPU: every length its own, zero lengths too, and wrong ones."""

import numpy
import pytest

import tilewright
from reference import packed_attention
from tilewright import ArgumentTypeError, InvalidArgumentError

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 64
Q_LENS = (5, 0, 70, 33, 1)
K_LENS = (9, 4, 64, 0, 130)
POISON = 7.0


def boundaries(lengths):
    return numpy.cumsum([0, *lengths], dtype=numpy.int32)


@pytest.fixture
def packed():
    """The arguments of one call."""
    generator = numpy.random.default_rng(0)
    q = generator.standard_normal((sum(Q_LENS), HEADS, HEAD_DIM), numpy.float32)
    k, v = generator.standard_normal((2, sum(K_LENS), KV_HEADS, HEAD_DIM), numpy.float32)
    cu_seqlens = {"cu_seqlens_q": boundaries(Q_LENS), "cu_seqlens_k": boundaries(K_LENS)}
    return {"q": q, "k": k, "v": v} | cu_seqlens


def assert_close(results, arguments):
    for actual, expected in zip(results, packed_attention(**arguments), strict=True):
        numpy.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"window_size": (20, 3)},
        {"softcap": 1.5, "sinks": numpy.linspace(-2, 4, HEADS, dtype=numpy.float32)},
        {"seqused_k": numpy.int32([9, 0, 60, 0, 1]), "causal": True},
    ],
    ids=lambda options: ", ".join(options) or "plain",
)
def test_matches_float64(packed, options):
    out, lse = tilewright.attention(**packed, **options, return_lse=True)
    assert out.shape == packed["q"].shape and lse.shape == (HEADS, sum(Q_LENS))
    assert_close((out, lse), packed | options)


def test_equals_the_sequences_one_by_one(packed):
    out = tilewright.attention(**packed, causal=True, batch_invariant=True)
    for b in (0, 2, 4):
        q_rows, k_rows = (
            slice(*packed[name][b : b + 2]) for name in ("cu_seqlens_q", "cu_seqlens_k")
        )
        q, k, v = packed["q"][None, q_rows], packed["k"][None, k_rows], packed["v"][None, k_rows]
        alone = tilewright.attention(q, k, v, causal=True, batch_invariant=True)
        assert (out[q_rows] == alone[0]).all()


def test_unnormalized(packed):
    out, row_max, row_sum = tilewright.attention(**packed, normalize=False)
    assert row_max.shape == row_sum.shape == (HEADS, sum(Q_LENS))
    with numpy.errstate(divide="ignore"):
        lse = row_max + numpy.log(row_sum)
    rows = numpy.where(row_sum == 0, 1, row_sum).T[..., None]
    assert_close((out / rows, lse), packed)


def test_rows_beyond_the_last_sequence_are_not_written(packed):
    packed["cu_seqlens_q"][-1] -= 1
    out = numpy.full_like(packed["q"], POISON)
    tilewright.attention(**packed, out=out)
    assert (out[-1] == POISON).all() and (out[:-1] != POISON).any()


def test_keys_used_of_a_dense_batch(make_qkv):
    q, k, v = make_qkv(batch=2, q_len=3, kv_len=40)
    seqused_k = numpy.int32([40, 17])
    v[1, 17:] = numpy.nan
    out = tilewright.attention(q, k, v, seqused_k=seqused_k, causal=True)
    for b, used in enumerate(seqused_k):
        alone = tilewright.attention(
            q[b : b + 1], k[b : b + 1, :used], v[b : b + 1, :used], causal=True
        )
        numpy.testing.assert_allclose(out[b : b + 1], alone, rtol=0, atol=1e-6)


def test_pytorch(packed):
    torch = pytest.importorskip("torch")
    tensors = {name: torch.from_numpy(array) for name, array in packed.items()}
    results = tilewright.attention(**tensors, causal=True, return_lse=True)
    assert_close(results, packed | {"causal": True})


def test_jax(packed):
    jax = pytest.importorskip("jax")
    with jax.default_device(jax.devices("cpu")[0]):
        arrays = {name: jax.numpy.asarray(array) + 0 for name, array in packed.items()}
        results = tilewright.attention(**arrays, return_lse=True)
    assert_close(results, packed)


# name: (what changes, exception, argument at fault, a part of the message)
WRONG_CALLS = {
    "a list of lengths": (
        lambda t: {"cu_seqlens_q": list(t["cu_seqlens_q"])},
        *(ArgumentTypeError, "cu_seqlens_q", "is a builtins.list"),
    ),
    "lengths of int64": (
        lambda t: {"cu_seqlens_k": t["cu_seqlens_k"].astype(numpy.int64)},
        *(InvalidArgumentError, "cu_seqlens_k", "has dtype int64, must be int32"),
    ),
    "lengths of fp32": (
        lambda t: {"seqused_k": numpy.zeros(5, numpy.float32)},
        *(InvalidArgumentError, "seqused_k", "has dtype fp32, must be int32"),
    ),
    "lengths in two dimensions": (
        lambda t: {"cu_seqlens_q": t["cu_seqlens_q"][None]},
        *(InvalidArgumentError, "cu_seqlens_q", "has rank 2, must have rank 1"),
    ),
    "other numbers of sequences": (
        lambda t: {"cu_seqlens_k": t["cu_seqlens_k"][:-1]},
        *(InvalidArgumentError, "cu_seqlens_k", "batch (elements less one) is 4, must equal"),
    ),
    "too few used lengths": (
        lambda t: {"seqused_k": numpy.zeros(4, numpy.int32)},
        *(InvalidArgumentError, "seqused_k", "batch is 4, must equal cu_seqlens_q's 5"),
    ),
    "a first length that is not 0": (
        lambda t: {"cu_seqlens_q": t["cu_seqlens_q"] + 1},
        *(InvalidArgumentError, "cu_seqlens_q", "starts with 1, must start with 0"),
    ),
    "a descending length": (
        lambda t: {"cu_seqlens_k": numpy.int32([0, 9, 5, 77, 77, 207])},
        *(InvalidArgumentError, "cu_seqlens_k", "falls from 9 to 5 at element 2"),
    ),
    "a length beyond the tokens": (
        lambda t: {"cu_seqlens_q": boundaries((5, 0, 70, 33, 2))},
        *(InvalidArgumentError, "cu_seqlens_q", "ends with 110, must be at most 109"),
    ),
    "more keys used than there are": (
        lambda t: {"seqused_k": numpy.int32([9, 5, 64, 0, 130])},
        *(
            InvalidArgumentError,
            "seqused_k",
            "is 5 for sequence 1, must be between 0 and its length 4",
        ),
    ),
    "a batch dimension": (
        lambda t: {"q": t["q"][None]},
        *(InvalidArgumentError, "q", "has rank 4, must have rank 3"),
    ),
    "keys with a batch dimension": (
        lambda t: {"k": t["k"][None]},
        *(InvalidArgumentError, "k", "has rank 4, must have rank 3"),
    ),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_wrong_call(packed, refused, name):
    change, exception, argument, message = WRONG_CALLS[name]
    out = numpy.full_like(packed["q"], POISON)
    with refused(exception, argument, message, out):
        tilewright.attention(**(packed | change(packed)), out=out)
