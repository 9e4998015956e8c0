"""quantize_nvfp4() and its inverse on the CPU: beside the article's recipe in NumPy and PyTorch."""

import functools

import numpy
import pytest

import tilewright
from tilewright import ArgumentTypeError, InvalidArgumentError

ml_dtypes = pytest.importorskip("ml_dtypes")

E2M1 = numpy.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], "float32")

quantize = functools.partial(tilewright.quantize_nvfp4, global_scale_kind="encode")
dequantize = functools.partial(tilewright.dequantize_nvfp4, global_scale_kind="encode")


def make_x(rows=70, columns=256, dtype="bfloat16", seed=0):
    """With blocks of very different sizes."""
    generator = numpy.random.default_rng(seed)
    x = generator.standard_normal((rows, columns // 16, 16), "float32")
    x *= numpy.exp2(generator.integers(-14, 3, (rows, columns // 16, 1)))
    return x.reshape(rows, columns).astype(dtype)


def article_recipe(x):
    """(codes, scales, global_scale) as the NVFP4 article's quantiser computes them."""
    blocks = x.astype("float32").reshape(len(x), -1, 16)
    global_scale = numpy.float32(2688) / abs(blocks).max()
    scales = (abs(blocks).max(axis=2) / numpy.float32(6) * global_scale).clip(-448, 448)
    scales = scales.astype(ml_dtypes.float8_e4m3fn)
    factors = global_scale / scales.astype("float32").clip(1e-12)
    scaled = blocks * factors[..., None]
    codes = scaled.astype(ml_dtypes.float4_e2m1fn).view("uint8") & 15
    codes = codes.reshape(x.shape)
    return codes[:, ::2] | codes[:, 1::2] << 4, scales.view("uint8"), global_scale


def values_of(codes, scales, global_scale):
    """In FP32, of NumPy's codes and linear E4M3 scales."""
    nibbles = numpy.stack([codes & 15, codes >> 4], axis=2).reshape(len(codes), -1, 16)
    exact = E2M1[nibbles] * scales.view(ml_dtypes.float8_e4m3fn).astype("float32")[..., None]
    return (exact / global_scale).reshape(len(codes), -1)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_quantizes_like_the_article(dtype):
    x = make_x(dtype=dtype)
    codes, scales, global_scale = quantize(x)
    expected_codes, expected_scales, expected_global = article_recipe(x)
    assert codes.dtype == scales.dtype == numpy.uint8 and global_scale.dtype == numpy.float32
    assert global_scale.shape == (1,) and global_scale[0] == expected_global
    assert (scales == expected_scales).all()
    assert (codes == expected_codes).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("scale_layout", ["linear", "swizzled"])
def test_dequantizes(dtype, scale_layout):
    codes, scales, global_scale = quantize(make_x())
    expected = values_of(codes, scales, global_scale)
    if scale_layout == "swizzled":
        scales = tilewright.swizzle_scales(scales)
    out = dequantize(codes, scales, global_scale, scale_layout=scale_layout, dtype=dtype)
    assert out.dtype == dtype
    assert (out == expected.astype(dtype)).all()


def test_a_decode_scale_is_the_reciprocal_convention():
    x = make_x()
    codes, scales, encode = quantize(x)
    amax = abs(x.astype("float32")).max()
    *_, decode = tilewright.quantize_nvfp4(x, global_scale_kind="decode")
    assert decode[0] == amax / numpy.float32(2688)
    out = tilewright.dequantize_nvfp4(codes, scales, decode, global_scale_kind="decode")
    expected = dequantize(codes, scales, encode)
    numpy.testing.assert_allclose(out, expected, rtol=1e-6)


def test_a_given_global_scale_is_used_and_returned():
    x = make_x()
    computed = quantize(x)
    given = quantize(x, computed[2])
    assert given[2] is computed[2]
    assert (given[0] == computed[0]).all() and (given[1] == computed[1]).all()


@pytest.mark.parametrize("rows", [1, 128, 130])
@pytest.mark.parametrize("columns", [16, 64, 208])
def test_swizzled_scales(rows, columns):
    x = make_x(rows, columns)
    codes, linear, _ = quantize(x)
    same_codes, swizzled, _ = quantize(x, scale_layout="swizzled")
    assert (same_codes == codes).all()
    assert (tilewright.swizzle_scales(linear) == swizzled).all()
    assert (tilewright.unswizzle_scales(swizzled, rows, columns // 16) == linear).all()
    # FlashInfer's words for it: (row tiles, 4, 32, block tiles, 4), axes 1 and 3 changed over.
    padded = numpy.zeros(swizzled.shape, "uint8")
    padded[:rows, : columns // 16] = linear
    tiles = padded.reshape(padded.shape[0] // 128, 4, 32, padded.shape[1] // 4, 4)
    assert (tiles.transpose(0, 3, 2, 1, 4).reshape(swizzled.shape) == swizzled).all()


def test_mxfp4_is_read():
    generator = numpy.random.default_rng(0)
    codes = generator.integers(0, 256, (8, 64), "uint8")
    scales = generator.integers(0, 256, (8, 4), "uint8")
    scales[0, 0] = 255
    out = dequantize(codes, scales, block_format="mxfp4")
    nibbles = numpy.stack([codes & 15, codes >> 4], axis=2).reshape(8, 4, 32)
    with numpy.errstate(over="ignore"):
        expected = E2M1[nibbles] * numpy.exp2(scales.astype("float64") - 127)[..., None]
        expected[scales == 255] = numpy.nan
        numpy.testing.assert_array_equal(out, expected.reshape(8, 128).astype("float32"))


def test_strided_and_read_only_inputs():
    x = make_x(20, 128)
    wide = numpy.zeros((40, 192), x.dtype)
    wide[::2, 32:160] = x
    wide.flags.writeable = False
    for actual, expected in zip(quantize(wide[::2, 32:160]), quantize(x), strict=True):
        assert (actual == expected).all()


def test_pytorch_on_the_cpu():
    torch = pytest.importorskip("torch")
    x = make_x(dtype="float32")
    codes, scales, global_scale = quantize(torch.from_numpy(x))
    assert codes.dtype == torch.uint8 and scales.dtype == torch.float8_e4m3fn
    expected = quantize(x)
    assert (codes.numpy() == expected[0]).all()
    assert (scales.view(torch.uint8).numpy() == expected[1]).all()
    out = dequantize(codes.view(torch.float4_e2m1fn_x2), scales, global_scale, dtype=torch.bfloat16)
    assert out.dtype == torch.bfloat16
    expected_out = torch.from_numpy(dequantize(*expected)).bfloat16()
    assert torch.equal(out, expected_out)
    swizzled = tilewright.swizzle_scales(scales)
    assert swizzled.dtype == scales.dtype
    assert torch.equal(
        tilewright.unswizzle_scales(swizzled, *scales.shape).view(torch.uint8),
        scales.view(torch.uint8),
    )
    mx_scales = torch.full((70, 8), 1.0).to(torch.float8_e8m0fnu)
    mx = dequantize(codes, mx_scales, block_format="mxfp4")
    ones = numpy.full((70, 16), 0x38, "uint8")  # 1 in E4M3
    assert (mx.numpy() == values_of(expected[0], ones, numpy.float32(1))).all()


def test_jax_on_the_cpu():
    jax = pytest.importorskip("jax")
    x = make_x(dtype="float32")
    with jax.default_device(jax.devices("cpu")[0]):
        results = quantize(jax.numpy.asarray(x) + 0)
    for actual, expected in zip(results, quantize(x), strict=True):
        assert isinstance(actual, jax.Array)
        assert (numpy.asarray(actual) == expected).all()


# name: (function, arguments that change, exception, argument at fault, a part of the message)
QUANTIZE = {
    "a list": ({"x": [[0.0] * 16]}, ArgumentTypeError, "x", "is a builtins.list"),
    "rank 3": ({"x": make_x()[None]}, InvalidArgumentError, "x", "has rank 3"),
    "integers": ({"x": make_x().astype("int32")}, InvalidArgumentError, "x", "has dtype int32"),
    "columns": ({"x": make_x()[:, :40]}, InvalidArgumentError, "x", "has 40 columns"),
    "no rows": ({"x": make_x()[:0]}, InvalidArgumentError, "x", "(0, 256)"),
    "strided columns": ({"x": make_x()[:, ::2]}, InvalidArgumentError, "x", "contiguous"),
    "a number": ({"global_scale": 2.0}, ArgumentTypeError, "global_scale", "builtins.float"),
    "a scale for each row": (
        {"global_scale": numpy.ones(70, "float32")},
        *(InvalidArgumentError, "global_scale", "size is 70"),
    ),
    "a BF16 scale": (
        {"global_scale": numpy.ones(1, "bfloat16")},
        *(InvalidArgumentError, "global_scale", "must be fp32"),
    ),
    "an FP64 scale": (
        {"global_scale": numpy.ones(1)},
        *(InvalidArgumentError, "global_scale", "has dtype float64, must be fp32"),
    ),
    "a layout": (
        {"scale_layout": "8x4"},
        *(InvalidArgumentError, "scale_layout", "'linear' or 'swizzled'"),
    ),
    "a kind": (
        {"global_scale_kind": None},
        *(InvalidArgumentError, "global_scale_kind", "'encode' or 'decode'"),
    ),
}


@pytest.mark.parametrize("name", QUANTIZE)
def test_wrong_quantize(nothing_is_written, refused, name):
    change, exception, argument, message = QUANTIZE[name]
    with nothing_is_written(), refused(exception, argument, message):
        quantize(**({"x": make_x()} | change))


DEQUANTIZE = {
    "FP32 codes": ({"codes": make_x(70, 128, "float32")}, "codes", "uint8 or float4_e2m1fn_x2"),
    "FP32 scales": ({"scales": make_x(70, 16, "float32")}, "scales", "uint8 or float8_e4m3fn"),
    "scales of another matrix": (
        {"scales": numpy.zeros((70, 15), "uint8")},
        *("scales", "columns is 15"),
    ),
    "an FP64 scale": (
        {"global_scale": numpy.ones(1)},
        *("global_scale", "has dtype float64, must be fp32"),
    ),
    "MXFP4 with a global scale": (
        {"block_format": "mxfp4", "scales": numpy.zeros((70, 8), "uint8")},
        *("global_scale", "MXFP4 has none"),
    ),
    "a global scale without its kind": (
        {"global_scale_kind": None},
        *("global_scale_kind", "is absent, must be encode or decode"),
    ),
    "a format": ({"block_format": "fp4"}, "block_format", "'nvfp4' or 'mxfp4'"),
    "a dtype": ({"dtype": numpy.float64}, "dtype", "'float32', 'float16' or 'bfloat16'"),
}


@pytest.mark.parametrize("name", DEQUANTIZE)
def test_wrong_dequantize(nothing_is_written, refused, name):
    change, argument, message = DEQUANTIZE[name]
    arguments = dict(zip(("codes", "scales", "global_scale"), quantize(make_x()), strict=True))
    with nothing_is_written(), refused(InvalidArgumentError, argument, message):
        dequantize(**(arguments | change))


def test_wrong_scales():
    scales = numpy.zeros((5, 4), "uint8")
    with pytest.raises(InvalidArgumentError, match="linear: has rank 1"):
        tilewright.swizzle_scales(scales[0])
    with pytest.raises(InvalidArgumentError, match="linear: has dtype float32"):
        tilewright.swizzle_scales(scales.astype("float32"))
    with pytest.raises(InvalidArgumentError, match="swizzled: rows is 5, must equal"):
        tilewright.unswizzle_scales(scales, 5, 4)
    with pytest.raises(ArgumentTypeError, match="rows: is 5.0"):
        tilewright.unswizzle_scales(scales, 5.0, 4)
    with pytest.raises(InvalidArgumentError, match="blocks: is 0"):
        tilewright.unswizzle_scales(scales, 5, 0)
    with pytest.raises(InvalidArgumentError, match="rows: is 1099511627776, must be"):
        tilewright.unswizzle_scales(scales, 1 << 40, 4)
    with pytest.raises(InvalidArgumentError, match="swizzled: columns is 4, must equal blocks"):
        tilewright.unswizzle_scales(numpy.zeros((1 << 20, 4), "uint8"), 1 << 20, 1 << 29)
