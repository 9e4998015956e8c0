"""Attention in float64, and the distance to it."""

import numpy

ERROR_LIMITS = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 3e-3}  # relative, Frobenius


def attention(
    q, k, v, causal=False, window_size=(-1, -1), softcap=0.0, sinks=None, softmax_scale=None
):  # fmt: skip
    """(o, lse) in float64 of arrays (batch, seqlen, heads, head_dim)."""
    q, k, v = (numpy.asarray(x).astype(numpy.float64) for x in (q, k, v))
    group = q.shape[2] // k.shape[2]
    k, v = (numpy.repeat(x, group, axis=2) for x in (k, v))
    scores = numpy.einsum("bihd,bjhd->bhij", q, k)
    scores *= q.shape[3] ** -0.5 if softmax_scale is None else softmax_scale
    if softcap:
        scores = softcap * numpy.tanh(scores / softcap)
    i, j = numpy.ogrid[: q.shape[1], : k.shape[1]]
    beyond = j - (i + k.shape[1] - q.shape[1])  # how far to the right of the diagonal
    left, right = window_size
    hidden = (beyond > 0) & causal
    hidden |= (beyond > right) & (right >= 0)
    hidden |= (-beyond > left) & (left >= 0)
    scores[:, :, hidden] = -numpy.inf
    with numpy.errstate(divide="ignore", invalid="ignore"):
        lse = numpy.logaddexp.reduce(scores, axis=3)
        if sinks is not None:
            lse = numpy.logaddexp(lse, numpy.asarray(sinks, numpy.float64)[None, :, None])
        weights = numpy.nan_to_num(numpy.exp(scores - lse[..., None]))  # rows without a key: 0
    return numpy.einsum("bhij,bjhd->bihd", weights, v), lse


def packed_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_k=None, **options):
    """(o, lse) of arrays (tokens, heads, head_dim); lse is (heads, tokens)."""
    o = numpy.zeros((*q.shape[:2], v.shape[2]))
    lse = numpy.zeros(q.shape[1::-1])
    for b in range(len(cu_seqlens_q) - 1):
        rows = slice(cu_seqlens_q[b], cu_seqlens_q[b + 1])
        first, last = cu_seqlens_k[b : b + 2]
        keys = slice(first, last if seqused_k is None else first + seqused_k[b])
        result = attention(q[None, rows], k[None, keys], v[None, keys], **options)
        o[rows], lse[:, rows] = result[0][0], result[1][0]
    return o, lse


def relative_error(actual, expected):
    difference = numpy.asarray(actual).astype(numpy.float64) - expected
    return numpy.linalg.norm(difference) / numpy.linalg.norm(expected)


def assert_close(out, lse, q, k, v, dtype, **options):
    """out (and lse, where given) of this dtype's kernel against float64; empty rows exact."""
    expected, expected_lse = attention(q, k, v, **options)
    out = numpy.asarray(out).astype(numpy.float64)
    assert out.shape == expected.shape
    assert relative_error(out, expected) <= ERROR_LIMITS[dtype]
    empty = numpy.isneginf(expected_lse)  # (batch, heads, q_len)
    assert (out.transpose(0, 2, 1, 3)[empty] == 0).all()
    if lse is not None:
        assert numpy.asarray(lse).dtype == numpy.float32
        numpy.testing.assert_allclose(numpy.asarray(lse), expected_lse, rtol=0, atol=1e-3)
