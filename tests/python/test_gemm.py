"""gemm_nvfp4() on the CPU, beside dequantised operands in float64."""

import functools
import sys

import numpy
import pytest

import tilewright
from tilewright import ArgumentTypeError, InvalidArgumentError

pytest.importorskip("ml_dtypes")

M, N, K = 5, 48, 128

quantize = functools.partial(tilewright.quantize_nvfp4, global_scale_kind="encode")
multiply = functools.partial(tilewright.gemm_nvfp4, global_scale_b_kind="encode")


def make(rows, seed, dtype="float32"):
    return numpy.random.default_rng(seed).standard_normal((rows, K)).astype(dtype)


def dequantized(codes, scales, global_scale):
    return tilewright.dequantize_nvfp4(
        codes, scales, global_scale, global_scale_kind="encode"
    ).astype("float64")


def relative_error(actual, expected):
    difference = actual.astype("float64") - expected
    return numpy.linalg.norm(difference) / numpy.linalg.norm(expected)


@pytest.fixture
def weight():
    return quantize(make(N, 1))


@pytest.mark.parametrize("a_dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_w4a16(weight, a_dtype, dtype):
    a = make(M, 2, a_dtype)
    out = multiply(a, *weight, dtype=dtype)
    assert out.shape == (M, N) and out.dtype.name == dtype
    expected = a.astype("float64") @ dequantized(*weight).T
    limit = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 2e-7}[dtype]
    assert relative_error(out, expected) < limit


@pytest.mark.parametrize("layout", ["linear", "swizzled"])
def test_w4a4_with_bias_and_residual(weight, layout):
    codes, scales, global_scale = quantize(make(M, 3))
    bias = make(1, 4)[0, :N].copy()
    residual = make(M, 5)[:, :N]
    expected = dequantized(codes, scales, global_scale) @ dequantized(*weight).T + bias + residual
    b, sfb, global_scale_b = weight
    if layout == "swizzled":
        scales, sfb = tilewright.swizzle_scales(scales), tilewright.swizzle_scales(sfb)
    out = residual.copy()
    result = multiply(
        codes,
        b,
        sfb,
        global_scale_b,
        sfa=scales,
        global_scale_a=global_scale,
        global_scale_a_kind="encode",
        bias=bias,
        residual=out,
        out=out,
        sfa_layout=layout,
        sfb_layout=layout,
    )
    assert result is out
    assert relative_error(out, expected) < 1e-6


def test_a_batch_and_decode_scales_of_rows(weight):
    a = numpy.stack([make(M, 6, "float16"), make(M, 7, "float16")])
    b, sfb, _ = weight
    rows = numpy.exp2(numpy.arange(2 * N) % 5 - 2).astype("float32").reshape(2, N)
    out = multiply(
        a,
        numpy.stack([b, b]),
        numpy.stack([sfb, sfb]),
        rows,
        global_scale_b_kind="decode",
        dtype="float32",
    )
    one = numpy.ones(1, "float32")
    expected = a.astype("float64") @ dequantized(b, sfb, one).T * rows[:, None, :]
    assert relative_error(out, expected) < 1e-6


def test_torch(weight):
    torch = pytest.importorskip("torch")
    a = torch.from_numpy(make(M, 2)).to(torch.bfloat16)
    b, sfb, global_scale = map(torch.from_numpy, weight)
    out = multiply(a, b, sfb.view(torch.float8_e4m3fn), global_scale)
    assert out.dtype is torch.bfloat16 and out.shape == (M, N)
    expected = a.double().numpy() @ dequantized(*weight).T
    assert relative_error(out.float().numpy(), expected) < 2**-8


@pytest.mark.parametrize(
    ("wrong", "exception", "argument", "message"),
    [
        ({"a": [1.0]}, ArgumentTypeError, "a", "is a builtins.list"),
        ({"a": make(M, 2)}, InvalidArgumentError, "a", "has dtype fp32, must be bf16, fp16"),
        ({"a": make(M, 2, "float16")[0]}, InvalidArgumentError, "a", "has rank 1"),
        ({"b": make(N, 1)}, InvalidArgumentError, "b", "has dtype float32, must be uint8"),
        ({"sfb_layout": "zigzag"}, InvalidArgumentError, "sfb_layout", "'linear' or 'swizzled'"),
        ({"dtype": "int8"}, InvalidArgumentError, "dtype", "is 'int8'"),
        ({"kernel": 3}, ArgumentTypeError, "kernel", "is 3"),
        ({"batch_invariant": "no"}, ArgumentTypeError, "batch_invariant", "is 'no'"),
        ({"b_is_constant": 1}, ArgumentTypeError, "b_is_constant", "is 1"),
        ({"kernel": "k4"}, InvalidArgumentError, "kernel", "is 'k4', must be one of auto, cpu"),
        ({"sfa": make(M, 2)}, InvalidArgumentError, "sfa", "must be uint8"),
        (
            {"a": make(M, 2, "float64")},
            *(InvalidArgumentError, "a", "has dtype float64, must be bf16 or fp16, or uint8"),
        ),
        (
            {"global_scale_b": numpy.ones(1)},
            *(InvalidArgumentError, "global_scale_b", "has dtype float64, must be fp32"),
        ),
        (
            {"global_scale_b_kind": None},
            *(InvalidArgumentError, "global_scale_b_kind", "is absent, must be encode or decode"),
        ),
        (
            {"global_scale_b_kind": "divide"},
            *(InvalidArgumentError, "global_scale_b_kind", "must be 'encode' or 'decode'"),
        ),
        (
            {"bias": numpy.ones(N)},
            *(InvalidArgumentError, "bias", "has dtype float64, must be the dtype of out"),
        ),
        (
            {"bias": numpy.ones(N, "float16")},
            *(InvalidArgumentError, "bias", "must be fp32, the dtype of the result"),
        ),
        (
            {"residual": numpy.ones((M, N), "float16")},
            *(InvalidArgumentError, "residual", "must be fp32, the dtype of the result"),
        ),
        ({"out": numpy.ones((M, N))}, InvalidArgumentError, "out", "must be fp32, fp16 or bf16"),
    ],
)
def test_wrong_arguments(weight, nothing_is_written, refused, wrong, exception, argument, message):
    b, sfb, global_scale = weight
    out = numpy.full((M, N), 7, "float32")
    right = {"a": make(M, 2, "float16"), "b": b, "sfb": sfb, "global_scale_b": global_scale}
    for given in ({"out": out}, {"dtype": "float32"}):
        with nothing_is_written(out), refused(exception, argument, message):
            multiply(**(right | given | wrong))


@pytest.mark.parametrize(
    ("wrong", "exception", "argument", "message"),
    [
        ({"a": make(M, 2)}, InvalidArgumentError, "a", "has dtype fp32, must be bf16"),
        ({"b": make(N, 2, "int32")}, InvalidArgumentError, "b", "has dtype int32, must be bf16"),
        ({"b": [1.0]}, ArgumentTypeError, "b", "is a builtins.list"),
        ({"kernel": 3}, ArgumentTypeError, "kernel", "is 3"),
        ({}, InvalidArgumentError, "a", "is on cpu, kernel gemm_naive takes tensors on cuda"),
    ],
)
def test_wrong_arguments_of_bf16_steps(
    nothing_is_written, refused, wrong, exception, argument, message
):
    right = {"a": make(M, 2, "bfloat16"), "b": make(N, 1, "bfloat16"), "kernel": "gemm_naive"}
    with nothing_is_written(), refused(exception, argument, message):
        tilewright.gemm_bf16(**(right | wrong))


def test_what_jax_traces_is_refused_by_name(weight):
    jax = pytest.importorskip("jax")
    a = jax.numpy.asarray(make(M, 2, "float16"))
    weight = [jax.numpy.asarray(array) for array in weight]
    with pytest.raises(ArgumentTypeError, match="^a: is traced by JAX"):
        jax.jit(multiply)(a, *weight)
    with pytest.raises(ArgumentTypeError, match="^x: is traced by JAX"):
        jax.jit(quantize)(a)


def test_out_may_lie_between_the_rows_of_an_input_but_not_in_them(weight):
    expected = multiply(make(M, 2, "float16"), *weight, dtype="float16")
    buffer = numpy.zeros((M, K + N), "float16")
    a = buffer[:, :K]
    a[:] = make(M, 2, "float16")
    multiply(a, *weight, out=buffer[:, K:])
    assert (buffer[:, K:] == expected).all()
    with pytest.raises(InvalidArgumentError) as raised:
        multiply(a, *weight, out=buffer[:, K - 1 : K - 1 + N])
    assert str(raised.value) == (
        "out: shares memory with a, must not overlap an input or another output"
    )


@pytest.mark.parametrize(
    ("a_dtype", "message"),
    [
        ("float16", "dtype: is 'bfloat16', which NumPy has with ml_dtypes only: pip install ml_dt"),
        ("float32", "a: has dtype fp32, must be bf16, fp16, or e2m1x2 of NVFP4"),
    ],
)
def test_without_ml_dtypes_the_remedy_is_named(monkeypatch, weight, a_dtype, message):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)  # the import of it fails
    with pytest.raises(InvalidArgumentError) as raised:
        tilewright.gemm_nvfp4(make(M, 2, a_dtype), *weight, global_scale_b_kind="encode")
    assert str(raised.value).startswith(message)
