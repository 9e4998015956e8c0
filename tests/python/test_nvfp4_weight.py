"""prepack_nvfp4_weight(), its inverse, and gemm_nvfp4() with a packed weight, on the CPU."""

import functools

import numpy
import pytest

import tilewright
from tilewright import ArgumentTypeError, InvalidArgumentError

pytest.importorskip("ml_dtypes")

M, N, K = 5, 70, 144

multiply = functools.partial(tilewright.gemm_nvfp4, global_scale_b_kind="encode")


def make(*shape, seed=1, dtype="float32"):
    return numpy.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.fixture
def weight():
    return tilewright.quantize_nvfp4(make(N, K), global_scale_kind="encode")


def rotated_right(word, bits):
    return (word >> bits % 32 | word << -bits % 32) & 0xFFFFFFFF


def dequantized_element(packed, row, column):
    """A value of a packed weight (rows of tiles, bytes), by the byte map of docs/nvfp4.md."""
    tile = packed[row // 64, column // 64 * 2304 :][:2304].view("<u4")
    row, column = row % 64, column % 64
    thread = row // 16 * 32 + row % 8 * 4 + column % 8 // 2
    half, group, g8 = column // 32, column % 32 // 8, row // 8 % 2
    a, b = (int(word) for word in tile[4 * thread + 2 * half :][:2])
    rest = (a & 0x60306030) | (rotated_right(b, 2) & ~0x60306030)
    word, bits = [(a, 0), (a, 4), (a, 26), (b, 0), (b, 4), (b, 26), (rest, 6), (rest, 28)][
        2 * group + g8
    ]
    pair = rotated_right(word, bits) >> 16 * (column % 2)
    magnitude = (0, 0.5, 1, 1.5, 2, 3, 4, 6)[pair >> 6 & 7]
    word = int(tile[512 + thread // 4 * 2 + half])
    scale = rotated_right(word, 4 + 8 * (group // 2) + 16 * g8) & 0xFF
    assert scale != 0 or magnitude == 0
    return (-1) ** (pair >> 15 & 1) * magnitude * (1 + scale % 8 / 8) * 2.0 ** (scale // 8 - 22)


@pytest.mark.parametrize("layout", ["linear", "swizzled"])
def test_bytes_are_where_the_documentation_has_them(weight, layout):
    codes, scales, _ = weight
    expected = numpy.zeros((128, 256))
    expected[:N, :K] = tilewright.dequantize_nvfp4(codes, scales)
    if layout == "swizzled":
        scales = tilewright.swizzle_scales(scales)
    packed = tilewright.prepack_nvfp4_weight(codes, scales, scale_layout=layout)
    assert packed.dtype == numpy.uint8 and packed.shape == (2, 4 * 2304)
    for row in range(128):
        for column in range(256):
            assert dequantized_element(packed, row, column) == expected[row, column]


@pytest.mark.parametrize("layout", ["linear", "swizzled"])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_there_and_back(layout, batch):
    random = numpy.random.default_rng(1)
    rows, blocks = (N, K // 16) if layout == "linear" else (128, 12)
    codes = random.integers(0, 256, (*batch, N, K // 2), "uint8")
    scales = random.integers(1, 127, (*batch, rows, blocks), "uint8")
    packed = tilewright.prepack_nvfp4_weight(codes, scales, scale_layout=layout)
    assert packed.shape == (*batch, 2, 4 * 2304)
    codes_again, scales_again = tilewright.unpack_nvfp4_weight(packed, N, K, scale_layout=layout)
    assert numpy.array_equal(codes_again, codes)
    if layout == "linear":
        assert numpy.array_equal(scales_again, scales)
    repacked = tilewright.prepack_nvfp4_weight(codes_again, scales_again, scale_layout=layout)
    assert numpy.array_equal(repacked, packed)


@pytest.mark.parametrize("a_dtype", ["float16", "bfloat16"])
def test_a_gemm_is_that_of_the_codes(weight, a_dtype):
    a = make(M, K, seed=2).astype(a_dtype)
    b, sfb, global_scale = weight
    packed = tilewright.prepack_nvfp4_weight(b, sfb)
    expected = multiply(a, b, sfb, global_scale)
    out = multiply(a, packed, global_scale_b=global_scale, n=N)
    assert out.dtype == expected.dtype and numpy.array_equal(out, expected)
    given = numpy.empty_like(expected)
    assert multiply(a, packed, None, global_scale, out=given) is given
    assert numpy.array_equal(given, expected)


def test_a_batch(weight):
    a = make(2, M, K, seed=2, dtype="float16")
    b, sfb, global_scale = weight
    b, sfb = numpy.stack([b, b ^ 8]), numpy.stack([sfb, sfb])
    packed = tilewright.prepack_nvfp4_weight(b, sfb)
    out = multiply(a, packed, None, global_scale, n=N)
    assert numpy.array_equal(out, multiply(a, b, sfb, global_scale))


@pytest.mark.parametrize(("n", "k"), [(65, 144), (100, 256), (128, 208), (128, 256)])
def test_other_sizes_with_the_same_tiles(n, k):
    """They are not refused: a packed weight has N and K rounded up to 64 and 128, with zeros."""
    b, sfb, _ = tilewright.quantize_nvfp4(make(100, 208), global_scale_kind="encode")
    values = numpy.zeros((128, 256))
    values[:100, :208] = tilewright.dequantize_nvfp4(b, sfb)
    a = make(M, k, seed=2, dtype="float16")
    packed = tilewright.prepack_nvfp4_weight(b, sfb)
    out = tilewright.gemm_nvfp4(a, packed, n=n, dtype="float32")
    expected = a.astype("float64") @ values[:n, :k].T
    assert numpy.linalg.norm(out - expected) < 1e-6 * numpy.linalg.norm(expected)
    assert (out[:, 100:] == 0).all()


@pytest.mark.parametrize("batch", [(), (3,)])
def test_packing_again_into_the_same_memory(batch):
    random = numpy.random.default_rng(1)
    out = random.integers(0, 256, (*batch, 2, 4 * 2304), "uint8")
    for _ in range(2):
        codes = random.integers(0, 256, (*batch, N, K // 2), "uint8")
        scales = random.integers(1, 127, (*batch, N, K // 16), "uint8")
        assert tilewright.prepack_nvfp4_weight(codes, scales, out=out) is out
        assert numpy.array_equal(out, tilewright.prepack_nvfp4_weight(codes, scales))


def test_torch(weight):
    torch = pytest.importorskip("torch")
    b, sfb, _ = map(torch.from_numpy, weight)
    packed = tilewright.prepack_nvfp4_weight(b, sfb.view(torch.float8_e4m3fn))
    assert packed.dtype is torch.uint8
    codes, scales = tilewright.unpack_nvfp4_weight(packed, N, K)
    assert scales.dtype is torch.float8_e4m3fn and torch.equal(scales.view(torch.uint8), sfb)
    assert torch.equal(codes, b)


def test_the_layout_has_a_version():
    assert tilewright.NVFP4_WEIGHT_LAYOUT == 1


@pytest.mark.parametrize(
    ("wrong", "exception", "argument", "message"),
    [
        ({"codes": [1]}, ArgumentTypeError, "codes", "is a builtins.list"),
        ({"codes": make(K)}, InvalidArgumentError, "codes", "has rank 1, must have rank 2 or 3"),
        ({"codes": make(N, K)}, InvalidArgumentError, "codes", "has dtype float32, must be uint8"),
        ({"scales": make(N, 9)}, InvalidArgumentError, "scales", "must be uint8 or float8_e4m3fn"),
        ({"scales": numpy.zeros((N, 8), "uint8")}, InvalidArgumentError, "scales", "columns is 8"),
        ({"scale_layout": "tiled"}, InvalidArgumentError, "scale_layout", "is 'tiled'"),
        ({"scale_layout": "swizzled"}, InvalidArgumentError, "scales", "multiple of 128"),
        ({"out": [1]}, ArgumentTypeError, "out", "is a builtins.list"),
        ({"out": numpy.zeros((2, 9216), "int8")}, InvalidArgumentError, "out", "has dtype int8"),
        ({"out": numpy.zeros((3, 9216), "uint8")}, InvalidArgumentError, "out", "rows is 3, must"),
        ({"out": numpy.zeros((2, 9215), "uint8")}, InvalidArgumentError, "out", "columns is 9215"),
        ({"out": numpy.zeros((1, 2, 9216), "uint8")}, InvalidArgumentError, "out", "has rank 3"),
    ],
)
def test_wrong_arguments_of_prepacking(
    weight, nothing_is_written, refused, wrong, exception, argument, message
):
    right = {"codes": weight[0], "scales": weight[1]}
    with nothing_is_written(), refused(exception, argument, message):
        tilewright.prepack_nvfp4_weight(**(right | wrong))


@pytest.mark.parametrize(
    ("wrong", "argument", "message"),
    [
        ({"packed": numpy.zeros((2, 9216), "int8")}, "packed", "has dtype int8, must be uint8"),
        ({"packed": numpy.zeros(9216, "uint8")}, "packed", "has rank 1"),
        ({"n": 200}, "packed", "rows is 2, must equal the tiles of 64 of N 200, 4"),
        ({"n": 0}, "n", "is 0, must be at least 1"),
        ({"n": 1 << 40}, "n", "is 1099511627776, must be at least 1 and less than 2^30"),
        ({"k": 1 << 29}, "packed", "columns is 9216"),
        ({"k": 300 * 16}, "packed", "columns is 9216"),
        ({"k": 136}, "k", "is 136, must be a multiple of 16"),
    ],
)
def test_wrong_arguments_of_unpacking(nothing_is_written, refused, wrong, argument, message):
    right = {"packed": numpy.zeros((2, 9216), "uint8"), "n": N, "k": K}
    with nothing_is_written(), refused(InvalidArgumentError, argument, message):
        tilewright.unpack_nvfp4_weight(**(right | wrong))


@pytest.mark.parametrize(
    ("wrong", "argument", "message"),
    [
        ({"n": None}, "n", "is None, must be given where b is packed"),
        ({"n": 200}, "b", "rows is 2, must equal the tiles of 64 of N 200, 4"),
        ({"n": (1 << 30) - 1}, "b", "rows is 2, must equal the tiles of 64 of N 1073741823"),
        ({"n": 1 << 31}, "n", "is 2147483648, must be at least 1 and less than 2^30"),
        ({"n": 1 << 40}, "n", "is 1099511627776, must be at least 1 and less than 2^30"),
        ({"out": numpy.zeros((M, N), "float32")}, "n", "must be None where out is given"),
        ({"b": numpy.zeros((N, K // 2), "uint8")}, "b", "rows is 70, must equal"),
        ({"b": numpy.zeros((2, 9216), "int8")}, "b", "has dtype int8, must be uint8"),
        ({"sfb": numpy.zeros((N, K // 16), "uint8")}, "n", "must be None where b is codes"),
    ],
)
def test_wrong_arguments_of_a_gemm(nothing_is_written, refused, wrong, argument, message):
    right = {"a": make(M, K, dtype="float16"), "b": numpy.zeros((2, 9216), "uint8"), "n": N}
    with nothing_is_written(), refused(InvalidArgumentError, argument, message):
        tilewright.gemm_nvfp4(**(right | wrong))


def test_a_packed_weight_that_is_no_array():
    with pytest.raises(ArgumentTypeError, match="^b: is a builtins.int"):
        tilewright.gemm_nvfp4(make(M, K, dtype="float16"), 3, n=N)
