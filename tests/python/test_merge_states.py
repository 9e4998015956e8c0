"""merge_states() on the CPU: parts of attention() become attention over all keys."""

import itertools

import numpy
import pytest

import tilewright
from reference import attention
from tilewright import ArgumentTypeError, InvalidArgumentError

ml_dtypes = pytest.importorskip("ml_dtypes")

CUTS = (0, 10, 11, 47)  # of the keys, into three parts


def parts_of(make_qkv, normalize=True, dtype="float32"):
    """q, k, v and, of attention over the keys between two cuts, (o, lse) or (o, m, l)."""
    q, k, v = (x.astype(dtype) for x in make_qkv(batch=1, kv_heads=4))
    options = {"return_lse": True} if normalize else {"normalize": False}
    results = [
        tilewright.attention(q, k[:, first:end], v[:, first:end], **options)
        for first, end in itertools.pairwise(CUTS)
    ]
    stacked = [numpy.stack([array[0] for array in each]) for each in zip(*results, strict=True)]
    return (q, k, v), stacked


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("has_sinks", [False, True])
def test_normalised_parts(make_qkv, dtype, has_sinks):
    (q, k, v), (o, lse) = parts_of(make_qkv, dtype=dtype)
    sinks = numpy.array([0.5, 2, -numpy.inf, -1], "float32") if has_sinks else None
    out, merged_lse = tilewright.merge_states(o, lse, sinks=sinks, return_lse=True)
    expected, expected_lse = attention(q, k, v, sinks=sinks)
    assert out.dtype == dtype and merged_lse.dtype == numpy.float32
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    numpy.testing.assert_allclose(out.astype("float32"), expected[0], atol=tolerance)
    numpy.testing.assert_allclose(merged_lse, expected_lse[0], atol=tolerance)


def test_unnormalised_parts(make_qkv):
    (q, k, v), (o, m, l) = parts_of(make_qkv, normalize=False)
    expected, expected_lse = attention(q, k, v)
    out = tilewright.merge_states(o, row_max=m, row_sum=l)
    numpy.testing.assert_allclose(out, expected[0], atol=1e-5)
    half = tilewright.merge_states(o, row_max=m, row_sum=l, dtype="float16")
    assert half.dtype == numpy.float16
    numpy.testing.assert_allclose(half, expected[0], atol=2e-3)

    out, row_max, row_sum = tilewright.merge_states(o, row_max=m, row_sum=l, normalize=False)
    numpy.testing.assert_allclose(row_max + numpy.log(row_sum), expected_lse[0], atol=1e-5)
    numpy.testing.assert_allclose(out / row_sum.T[..., None], expected[0], atol=1e-5)
    assert (row_max == m.max(axis=0)).all()


def test_parts_without_keys_are_not_looked_at(make_qkv):
    _, (o, lse) = parts_of(make_qkv)
    lse[1] = -numpy.inf
    o[1] = numpy.nan
    out, merged = tilewright.merge_states(o, lse, return_lse=True)
    expected, expected_lse = tilewright.merge_states(o[::2], lse[::2], return_lse=True)
    assert (out == expected).all() and (merged == expected_lse).all()
    lse[:] = -numpy.inf
    out, merged = tilewright.merge_states(o, lse, return_lse=True)
    assert (out == 0).all() and (merged == -numpy.inf).all()


def test_out_is_written(make_qkv):
    _, (o, lse) = parts_of(make_qkv)
    wide = numpy.zeros((o.shape[1], 2, *o.shape[2:]), "float32")
    out = tilewright.merge_states(o, lse, out=wide[:, 1])
    assert (wide[:, 1] == tilewright.merge_states(o, lse)).all()
    assert (wide[:, 0] == 0).all() and numpy.shares_memory(out, wide)


def test_pytorch_on_the_cpu(make_qkv):
    torch = pytest.importorskip("torch")
    _, (o, lse) = parts_of(make_qkv)
    out = tilewright.merge_states(torch.from_numpy(o), torch.from_numpy(lse), dtype=torch.bfloat16)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, torch.from_numpy(tilewright.merge_states(o, lse)).bfloat16())


# name: (the arguments that change, exception, argument at fault, a part of the message)
WRONG = {
    "a list": (lambda o, lse: {"o": [1.0]}, ArgumentTypeError, "o", "is a builtins.list"),
    "rank 3": (lambda o, lse: {"o": o[0]}, InvalidArgumentError, "o", "has rank 3, must have rank"),
    "no parts": (lambda o, lse: {"o": o[:0]}, InvalidArgumentError, "o", "has shape (0, "),
    "float64": (lambda o, lse: {"o": o.astype("float64")}, InvalidArgumentError, "o", "float64"),
    "strided": (lambda o, lse: {"o": o[..., ::2]}, InvalidArgumentError, "o", "head_dim must be"),
    "no statistics": (lambda o, lse: {"lse": None}, InvalidArgumentError, "lse", "is absent"),
    "two forms": (
        lambda o, lse: {"row_max": lse, "row_sum": lse},
        *(InvalidArgumentError, "lse", "is given, must be absent"),
    ),
    "no sums": (
        lambda o, lse: {"lse": None, "row_max": lse},
        *(InvalidArgumentError, "row_sum", "is absent, must be given"),
    ),
    "an lse of other parts": (
        lambda o, lse: {"lse": lse[1:]},
        *(InvalidArgumentError, "lse", "parts is 2, must equal o's 3"),
    ),
    "an FP64 lse": (
        lambda o, lse: {"lse": lse.astype("float64")},
        *(InvalidArgumentError, "lse", "has dtype float64, must be fp32"),
    ),
    "un-normalised of normalised": (
        lambda o, lse: {"normalize": False},
        *(InvalidArgumentError, "row_max_out", "is given, must be absent where lse is"),
    ),
    "an lse beside sums": (
        lambda o, lse: {"normalize": False, "return_lse": True},
        *(InvalidArgumentError, "return_lse", "must be False without normalize"),
    ),
    "a flag of 1": (lambda o, lse: {"return_lse": 1}, ArgumentTypeError, "return_lse", "is 1"),
    "a dtype": (lambda o, lse: {"dtype": "int32"}, InvalidArgumentError, "dtype", "is 'int32'"),
    "a dtype beside out": (
        lambda o, lse: {"dtype": "float32", "out": numpy.zeros(o.shape[1:], "float32")},
        *(InvalidArgumentError, "dtype", "must be None where out is given"),
    ),
    "a short out": (
        lambda o, lse: {"out": numpy.zeros((5, *o.shape[2:]), "float32")},
        *(InvalidArgumentError, "out", "tokens is 5, must equal o's 33"),
    ),
    "sinks of other heads": (
        lambda o, lse: {"sinks": numpy.zeros(3, "float32")},
        *(InvalidArgumentError, "sinks", "heads is 3, must equal o's 4"),
    ),
    "a kernel": (lambda o, lse: {"kernel": "k4"}, InvalidArgumentError, "kernel", "is 'k4'"),
    "a GPU's kernel": (
        lambda o, lse: {"kernel": "hopper"},
        *(InvalidArgumentError, "o", "is on cpu, kernel hopper takes"),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls(make_qkv, nothing_is_written, refused, name):
    change, exception, argument, message = WRONG[name]
    _, (o, lse) = parts_of(make_qkv)
    with nothing_is_written(), refused(exception, argument, message):
        tilewright.merge_states(**({"o": o, "lse": lse} | change(o, lse)))
