"""attention_with_kvcache() on the CPU, against float64 over gathered keys."""

import numpy
import pytest

import tilewright
from reference import ERROR_LIMITS, relative_error
from reference import attention as reference
from tilewright import ArgumentTypeError, InvalidArgumentError, UnsupportedError

CACHED = numpy.int32([37, 0, 64])
CAPACITY = 80
PAGE = 16


@pytest.fixture
def caches(make_qkv):
    """q (3, 2, 4, 64), and k and v of (3, 80, 2, 64), NaN from each sequence's end on."""
    q, k, v = make_qkv(batch=3, q_len=2, kv_len=CAPACITY)
    for b, cached in enumerate(CACHED):
        k[b, cached:] = v[b, cached:] = numpy.nan
    return q, k, v


def in_pages(k, v, keys=CACHED):
    """Caches of pages in random order, and the table; entries beyond the keys are garbage."""
    count = CAPACITY // PAGE
    order = numpy.random.default_rng(1).permutation(len(k) * count + 2)
    table = order[: len(k) * count].reshape(len(k), count).astype(numpy.int32)
    pages = []
    for rows in (k, v):
        paged = numpy.full((len(order), PAGE, *rows.shape[2:]), numpy.nan, rows.dtype)
        paged[table] = rows.reshape(len(k), count, PAGE, *rows.shape[2:])
        pages.append(paged)
    for b, end in enumerate(keys):
        table[b, -(-end // PAGE) :] = -9
    return *pages, table


def expect_close(out, lse, q, k, v, keys, dtype="float32", leftpad=(0, 0, 0), **options):
    for b, end in enumerate(keys):
        seen = slice(leftpad[b], end)
        its_k, its_v = (x[b : b + 1, seen] for x in (k, v))
        expected, expected_lse = reference(q[b : b + 1], its_k, its_v, **options)
        if end > leftpad[b]:
            assert relative_error(out[b : b + 1], expected) <= ERROR_LIMITS[dtype]
        else:
            assert (out[b] == 0).all()
        numpy.testing.assert_allclose(lse[b : b + 1], expected_lse, rtol=0, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("causal", [False, True])
def test_matches_float64(caches, dtype, causal):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    q, k, v = (x.astype(dtype) for x in caches)
    out, lse = tilewright.attention_with_kvcache(q, k, v, CACHED, causal=causal, return_lse=True)
    assert out.dtype == q.dtype
    expect_close(out, lse, q, k, v, CACHED, dtype, causal=causal)


def test_pages_change_no_bit(caches):
    q, k, v = caches
    whole = tilewright.attention_with_kvcache(q, k, v, CACHED, causal=True)
    k_pages, v_pages, table = in_pages(k, v)
    paged = tilewright.attention_with_kvcache(
        q, k_pages, v_pages, CACHED, block_table=table, causal=True
    )
    assert (whole == paged).all()


def test_new_rows_are_appended(caches, make_qkv):
    q, k, v = caches
    _, new_k, new_v = make_qkv(batch=3, kv_len=2, seed=5)
    k_pages, v_pages, table = in_pages(k, v, CACHED + 2)
    for b, cached in enumerate(CACHED):
        k[b, cached : cached + 2], v[b, cached : cached + 2] = new_k[b], new_v[b]
    options = {"causal": True, "return_lse": True}
    out, lse = tilewright.attention_with_kvcache(
        q, k_pages, v_pages, CACHED, block_table=table, k=new_k, v=new_v, **options
    )
    expect_close(out, lse, q, k, v, CACHED + 2, causal=True)
    for b, cached in enumerate(CACHED):
        for i in range(2):
            page, row = table[b, (cached + i) // PAGE], (cached + i) % PAGE
            assert (k_pages[page, row] == new_k[b, i]).all()
            assert (v_pages[page, row] == new_v[b, i]).all()


def test_rows_of_the_caches_in_another_order(caches):
    q, k, v = caches
    order = numpy.int32([2, 0, 1])
    out = tilewright.attention_with_kvcache(
        q, k[numpy.argsort(order)], v[numpy.argsort(order)], CACHED, cache_batch_idx=order
    )
    assert (out == tilewright.attention_with_kvcache(q, k, v, CACHED)).all()


def test_left_padding(caches):
    q, k, v = caches
    leftpad = numpy.int32([5, 0, 64])
    for b, padding in enumerate(leftpad):
        k[b, :padding] = v[b, :padding] = numpy.nan
    out, lse = tilewright.attention_with_kvcache(
        q, k, v, CACHED, leftpad_k=leftpad, return_lse=True
    )
    expect_close(out, lse, q, k, v, CACHED, leftpad=leftpad)


def test_shared_prefixes(caches):
    q, k, v = caches
    cached = numpy.int32([37, 50, 64])
    groups, seqlens = numpy.int32([0, 2, 3]), numpy.int32([30, 10])
    k[1:] = numpy.nan_to_num(k[1:])
    v[1:] = numpy.nan_to_num(v[1:])
    whole_k, whole_v = k.copy(), v.copy()
    for cache, whole in ((k, whole_k), (v, whole_v)):
        whole[1, :30] = cache[0, :30]
        cache[1, :30] = numpy.nan  # sequence 0 has them
    out, lse = tilewright.attention_with_kvcache(
        q, k, v, cached, prefix_groups=groups, prefix_seqlens=seqlens, causal=True, return_lse=True
    )
    expect_close(out, lse, q, whole_k, whole_v, cached, causal=True)


def test_packed_queries(caches):
    q, k, v = caches
    packed = q.reshape(6, 4, 64)
    out, lse = tilewright.attention_with_kvcache(
        packed, k, v, CACHED, cu_seqlens_q=numpy.int32([0, 2, 4, 6]), causal=True, return_lse=True
    )
    expected = tilewright.attention_with_kvcache(q, k, v, CACHED, causal=True, return_lse=True)
    assert (out.reshape(q.shape) == expected[0]).all()
    assert (lse.reshape(4, 3, 2).transpose(1, 0, 2) == expected[1]).all()


@pytest.mark.parametrize("told", [1, 3, 1000])
def test_packed_queries_whose_lengths_are_told_truly_or_not(caches, told):
    q, k, v = caches
    call = (q.reshape(6, 4, 64), k, v, CACHED)
    lengths = {"cu_seqlens_q": numpy.int32([0, 1, 4, 6]), "causal": True}
    out = tilewright.attention_with_kvcache(*call, **lengths, max_seqlen_q=told, max_seqlen_k=told)
    assert (out == tilewright.attention_with_kvcache(*call, **lengths)).all()


def test_a_chain_as_a_tree_is_causal(caches):
    q, k, v = caches
    chain = numpy.tile(numpy.int64([0b01, 0b11]), (3, 1))
    out = tilewright.attention_with_kvcache(q, k, v, CACHED, tree_mask=chain)
    expected = tilewright.attention_with_kvcache(q, k, v, CACHED, causal=True)
    assert (out == expected).all()


@pytest.mark.parametrize("per", [None, "tensor", "sequence", "row"])
@pytest.mark.parametrize("is_bytes", [False, True])
def test_e4m3_caches(caches, per, is_bytes):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q, *rows = caches
    generator = numpy.random.default_rng(3)
    shape = {None: (1,), "tensor": (1,), "sequence": (3, 2), "row": (3, CAPACITY, 2)}[per]
    descales = [generator.uniform(0.5, 2, shape).astype(numpy.float32) for _ in rows]
    codes = [x.astype(ml_dtypes.float8_e4m3fn) for x in rows]
    values = []
    for x, descale in zip(codes, descales, strict=True):
        factor = descale[:, None, :, None] if per == "sequence" else descale[..., None]
        values.append(x.astype(numpy.float64) * (factor if per else 1))
    given = dict(zip(("k_descale", "v_descale"), descales, strict=True)) if per else {}
    caches = [x.view(numpy.uint8) if is_bytes else x for x in codes]
    out, lse = tilewright.attention_with_kvcache(q, *caches, CACHED, return_lse=True, **given)
    expect_close(out, lse, q, *values, CACHED)


@pytest.mark.parametrize("per", [None, "tensor", "sequence"])
@pytest.mark.parametrize("is_bytes", [False, True])
def test_e4m3_queries(caches, per, is_bytes):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    codes = [x.astype(ml_dtypes.float8_e4m3fn) for x in caches]
    shape = {None: (1,), "tensor": (1,), "sequence": (3, 2)}[per]
    descale = numpy.random.default_rng(3).uniform(0.5, 2, shape).astype(numpy.float32)
    q, k, v = (x.astype(numpy.float32) for x in codes)
    heads = q.shape[2] // k.shape[2]
    if per == "sequence":
        q *= descale.repeat(heads, axis=1)[:, None, :, None]
    elif per == "tensor":
        q *= descale
    given = {"q_descale": descale} if per else {}
    arrays = [x.view(numpy.uint8) if is_bytes else x for x in codes]
    out, lse = tilewright.attention_with_kvcache(*arrays, CACHED, return_lse=True, **given)
    exact, exact_lse = tilewright.attention_with_kvcache(q, k, v, CACHED, return_lse=True)
    assert out.dtype.name == "bfloat16"
    assert numpy.allclose(out.astype(numpy.float32), exact, rtol=2**-8, atol=1e-5)
    assert numpy.allclose(lse, exact_lse, rtol=1e-6, atol=1e-6)
    o, row_max, row_sum = tilewright.attention_with_kvcache(
        *arrays, CACHED, normalize=False, **given
    )
    assert {x.dtype.name for x in (o, row_max, row_sum)} == {"float32"}


def test_window_softcap_sinks_and_scale(caches):
    q, k, v = caches
    sinks = numpy.float32([0.5, -1, 2, 0])
    options = {"window_size": (10, -1), "softcap": 2.0, "softmax_scale": 0.3, "sinks": sinks}
    out, lse = tilewright.attention_with_kvcache(q, k, v, CACHED, return_lse=True, **options)
    expect_close(out, lse, q, k, v, CACHED, **options)


def test_unnormalized_parts_merge(make_qkv):
    q, k, v = make_qkv(batch=3, q_len=2, kv_len=CAPACITY)
    cached = numpy.int32([37, 20, 64])
    first = numpy.int32([10, 20, 30])
    parts = [
        tilewright.attention_with_kvcache(q, k, v, first, normalize=False),
        tilewright.attention_with_kvcache(q, k, v, cached, leftpad_k=first, normalize=False),
    ]
    row_max = numpy.maximum(parts[0][1], parts[1][1])
    weights = [numpy.exp(part[1] - row_max) for part in parts]
    row_sum = sum(weight * part[2] for weight, part in zip(weights, parts, strict=True))
    rows = [weight.transpose(0, 2, 1)[..., None] for weight in weights]
    out = sum(row * part[0] for row, part in zip(rows, parts, strict=True))
    out /= row_sum.transpose(0, 2, 1)[..., None]
    expect_close(out, row_max + numpy.log(row_sum), q, k, v, cached)


def test_writes_into_out(caches):
    q, k, v = caches
    memory = numpy.full((3, 2, 2, 4, 64), numpy.nan, numpy.float32)
    out = memory[:, :, 0]
    given = {"out": out, "kernel": "cpu", "check_values": True, "batch_invariant": True}
    assert tilewright.attention_with_kvcache(q, k, v, CACHED, **given) is out
    assert (out == tilewright.attention_with_kvcache(q, k, v, CACHED)).all()
    assert numpy.isnan(memory[:, :, 1]).all()


def test_read_only_caches_are_read_but_not_written(caches, refused):
    q, k, v = caches
    expected = tilewright.attention_with_kvcache(q, k, v, CACHED)
    k.flags.writeable = v.flags.writeable = False
    assert (tilewright.attention_with_kvcache(q, k, v, CACHED) == expected).all()
    new = numpy.zeros((3, 1, 2, 64), numpy.float32)
    with refused(InvalidArgumentError, "k_cache", "is read-only"):
        tilewright.attention_with_kvcache(q, k, v, CACHED, k=new, v=new)


# What is spoilt, the exception, the argument and a part of the message.
WRONG_CALLS = {
    "a list": ({"k_cache": [1]}, ArgumentTypeError, "k_cache", "is a builtins.list"),
    "no lengths": ({"cache_seqlens": None}, ArgumentTypeError, "cache_seqlens", "NoneType"),
    "lengths of 64 bits": (
        {"cache_seqlens": CACHED.astype(numpy.int64)},
        *(InvalidArgumentError, "cache_seqlens", "has dtype int64, must be int32"),
    ),
    "a length beyond the capacity": (
        {"cache_seqlens": numpy.int32([1, 81, 2])},
        *(InvalidArgumentError, "cache_seqlens", "is 81 for sequence 1, must be between 0 and 80"),
    ),
    "groups without prefixes": (
        {"prefix_groups": numpy.int32([0, 3])},
        *(InvalidArgumentError, "prefix_seqlens", "must be given where prefix_groups is"),
    ),
    "a prefix beyond a sequence": (
        {"prefix_groups": numpy.int32([0, 2, 3]), "prefix_seqlens": numpy.int32([1, 9])},
        *(InvalidArgumentError, "prefix_seqlens", "is 1 for group 0, must be between 0 and 0"),
    ),
    "a table of float": (
        {"block_table": numpy.zeros((3, 2), numpy.float32)},
        *(InvalidArgumentError, "block_table", "has dtype fp32, must be int32"),
    ),
    "a mask of 32 bits": (
        {"tree_mask": numpy.zeros((3, 2), numpy.int32)},
        *(InvalidArgumentError, "tree_mask", "has dtype int32, must be int64"),
    ),
    "a descale without e4m3": (
        {"k_descale": numpy.ones(1, numpy.float32)},
        *(InvalidArgumentError, "k_descale", "must be absent where caches have dtype fp32"),
    ),
    "a descale of queries that have none": (
        {"q_descale": numpy.ones(1, numpy.float32)},
        *(InvalidArgumentError, "q_descale", "must be absent where q has dtype fp32"),
    ),
    "k without v": (
        {"k": numpy.zeros((3, 1, 2, 64), numpy.float32)},
        *(InvalidArgumentError, "v", "is absent, must be given where k is"),
    ),
    "another dtype of the cache": (
        {"k_cache": numpy.zeros((3, CAPACITY, 2, 64), numpy.float16)},
        *(InvalidArgumentError, "k_cache", "has dtype fp16, must be fp32, the dtype of q, or e4m3"),
    ),
    "a window that is none": (
        {"window_size": 3},
        *(ArgumentTypeError, "window_size", "must be a pair of integers"),
    ),
    "a scale that is none": ({"softmax_scale": "x"}, ArgumentTypeError, "softmax_scale", "number"),
    "a max_seqlen_q of parts of tokens": (
        {"max_seqlen_q": 1.5},
        *(ArgumentTypeError, "max_seqlen_q", "is 1.5, must be an integer or None"),
    ),
    "a flag that is none": ({"check_values": 1}, ArgumentTypeError, "check_values", "True or"),
    "lse without normalize": (
        {"normalize": False, "return_lse": True},
        *(InvalidArgumentError, "return_lse", "must be False without normalize"),
    ),
    "an unknown kernel": ({"kernel": "k99"}, InvalidArgumentError, "kernel", "is 'k99'"),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_wrong_call(caches, refused, name):
    change, exception, argument, message = WRONG_CALLS[name]
    q, k, v = (numpy.nan_to_num(x) for x in caches)
    out = numpy.full_like(q, 7.0)
    arguments = {"q": q, "k_cache": k, "v_cache": v, "cache_seqlens": CACHED, "out": out}
    if name == "lse without normalize":
        out = None
    with refused(exception, argument, message, *([] if out is None else [out])):
        tilewright.attention_with_kvcache(**(arguments | change))


def test_pytorch_on_the_cpu(caches):
    torch = pytest.importorskip("torch")
    q, k, v, cached = (torch.from_numpy(x) for x in (*caches, CACHED))
    out = tilewright.attention_with_kvcache(q, k, v, cached, causal=True)
    expected = tilewright.attention_with_kvcache(*caches, CACHED, causal=True)
    assert (out.numpy() == expected).all()
    with pytest.raises(UnsupportedError, match="q: requires a gradient"):
        tilewright.attention_with_kvcache(q.requires_grad_(), k, v, cached)


def test_jax_on_the_cpu(caches, refused):
    jax = pytest.importorskip("jax")
    with jax.default_device(jax.devices("cpu")[0]):
        q, k, v, cached = (jax.numpy.asarray(x) for x in (*caches, CACHED))
        out = tilewright.attention_with_kvcache(q, k, v, cached)
        assert (out == tilewright.attention_with_kvcache(*caches, CACHED)).all()
        with refused(InvalidArgumentError, "k", "JAX's are immutable"):
            tilewright.attention_with_kvcache(q, k, v, cached, k=k, v=v)
