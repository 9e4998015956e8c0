"""attention() on the CPU: NumPy arrays, and PyTorch and JAX tensors where those are installed."""

import numpy
import pytest

import tilewright
from reference import assert_close
from reference import attention as reference


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("causal", [False, True])
def test_matches_float64(make_qkv, dtype, causal):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    q, k, v = (x.astype(dtype) for x in make_qkv())
    out, lse = tilewright.attention(q, k, v, causal=causal, return_lse=True)
    assert out.dtype == q.dtype
    assert_close(out, lse, q, k, v, dtype, causal=causal)


@pytest.mark.parametrize(
    "shape",
    [
        {"q_len": 1, "kv_len": 1},
        {"q_len": 1, "kv_len": 300},
        {"q_len": 65, "kv_len": 129, "kv_heads": 1},
        {"q_len": 130, "kv_len": 65, "kv_heads": 4, "head_dim": 128},  # causal: 65 empty rows
        {"batch": 1, "q_len": 70, "kv_len": 70, "heads": 3, "kv_heads": 3, "head_dim": 40},
    ],
    ids=str,
)
@pytest.mark.parametrize("causal", [False, True])
def test_shapes(make_qkv, shape, causal):
    q, k, v = make_qkv(**shape)
    out, lse = tilewright.attention(q, k, v, causal=causal, return_lse=True)
    assert_close(out, lse, q, k, v, "float32", causal=causal)


@pytest.mark.parametrize("softmax_scale", [0.0, 0.3, numpy.float32(1.5)])
def test_softmax_scale(make_qkv, softmax_scale):
    q, k, v = make_qkv()
    out = tilewright.attention(q, k, v, softmax_scale=softmax_scale)
    assert_close(out, None, q, k, v, "float32", softmax_scale=softmax_scale)


def test_a_head_dim_of_the_values_own(make_qkv):
    q, k, _ = make_qkv(head_dim=192)
    _, _, v = make_qkv(head_dim=128, seed=1)
    out, lse = tilewright.attention(q, k, v, causal=True, return_lse=True)
    assert_close(out, lse, q, k, v, "float32", causal=True)


@pytest.mark.parametrize("max_seqlen", [None, 47, numpy.int64(47)])
def test_what_flash_attention_needs_and_this_does_not(make_qkv, max_seqlen):
    q, k, v = make_qkv()
    expected = tilewright.attention(q, k, v)
    out = tilewright.attention(q, k, v, max_seqlen_q=max_seqlen, max_seqlen_k=max_seqlen)
    assert (out == expected).all()


def test_unnormalized_results_over_two_sets_of_keys_merge(make_qkv):
    q, k, v = make_qkv(q_len=5, kv_len=70)
    parts = []
    for keys in (slice(0, 33), slice(33, 70)):
        part = tilewright.attention(q, k[:, keys], v[:, keys], normalize=False)
        assert [x.dtype for x in part] == [numpy.float32] * 3
        parts.append(part)
    row_max = numpy.maximum(parts[0][1], parts[1][1])
    weights = [numpy.exp(part[1] - row_max) for part in parts]
    row_sum = sum(weight * part[2] for weight, part in zip(weights, parts, strict=True))
    rows = [weight.transpose(0, 2, 1)[..., None] for weight in weights]
    out = sum(row * part[0] for row, part in zip(rows, parts, strict=True))
    out /= row_sum.transpose(0, 2, 1)[..., None]
    assert_close(out, row_max + numpy.log(row_sum), q, k, v, "float32")


@pytest.mark.parametrize("window_size", [(-1, -1), (7, -1), (-1, 3), (0, 0), [20, 5]], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_window(make_qkv, window_size, causal):
    q, k, v = make_qkv(q_len=70, kv_len=60)
    options = {"window_size": window_size, "causal": causal}
    out, lse = tilewright.attention(q, k, v, return_lse=True, **options)
    assert_close(out, lse, q, k, v, "float32", **options)


def test_softcap_and_sinks(make_qkv):
    q, k, v = make_qkv(q_len=70, kv_len=60)
    options = {
        "softcap": 1.5,
        "sinks": numpy.linspace(-2, 4, q.shape[2], dtype=numpy.float32),
        "window_size": (10, 0),
    }
    out, lse = tilewright.attention(q, k, v, return_lse=True, **options)
    expected, expected_lse = reference(q, k, v, **options)
    numpy.testing.assert_allclose(out, expected, rtol=0, atol=1e-5)
    numpy.testing.assert_allclose(lse, expected_lse, rtol=0, atol=1e-5)


def test_strided_and_read_only_inputs(make_qkv):
    packed = numpy.stack(make_qkv(kv_len=33, kv_heads=4), axis=2)  # (batch, seqlen, 3, heads, dim)
    packed.flags.writeable = False
    q, k, v = (packed[:, ::-1, i] for i in range(3))
    assert_close(tilewright.attention(q, k, v), None, q, k, v, "float32")


def test_writes_into_a_strided_out(make_qkv):
    q, k, v = make_qkv()
    memory = numpy.full((*q.shape[:2], 2, *q.shape[2:]), numpy.nan, numpy.float32)
    out = memory[:, :, 0]
    assert tilewright.attention(q, k, v, out=out, kernel="cpu") is out
    assert_close(out, None, q, k, v, "float32")
    assert numpy.isnan(memory[:, :, 1]).all()


def test_two_runs_are_bit_equal(make_qkv):
    q, k, v = make_qkv(q_len=200, kv_len=300)
    first, second = (tilewright.attention(q, k, v, causal=True) for _ in range(2))
    assert (first == second).all()


@pytest.mark.parametrize("flag", ["batch_invariant", "check_lengths"])
def test_flags_that_change_no_value_here(make_qkv, flag):
    q, k, v = make_qkv()
    assert (tilewright.attention(q, k, v, **{flag: True}) == tilewright.attention(q, k, v)).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_pytorch_on_the_cpu(make_qkv, dtype):
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(x).to(getattr(torch, dtype)) for x in make_qkv())
    out, lse = tilewright.attention(q, k, v, causal=True, return_lse=True)
    assert out.dtype == q.dtype and lse.dtype == torch.float32
    q, k, v, out = (x.double().numpy() for x in (q, k, v, out))
    assert_close(out, lse.numpy(), q, k, v, dtype, causal=True)


def test_jax_on_the_cpu(make_qkv):
    jax = pytest.importorskip("jax")
    with jax.default_device(jax.devices("cpu")[0]):
        q, k, v = (jax.numpy.asarray(x) + 0 for x in make_qkv())
        out, lse = tilewright.attention(q, k, v, return_lse=True)
    assert isinstance(out, jax.Array)
    assert_close(out, lse, q, k, v, "float32")
