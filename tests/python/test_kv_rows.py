"""quantize_kv_rows() and dequantize_kv_rows() on the CPU, beside the same in NumPy."""

import numpy
import pytest

import tilewright
from tilewright import ArgumentTypeError, InvalidArgumentError

ml_dtypes = pytest.importorskip("ml_dtypes")

PAGES, PAGE_SIZE, DIMS = 3, 8, 512
SLOTS = numpy.array([3, -1, 23, 10, 8], "int64")
ROW_BYTES = {"bf16": 1024, "e4m3_bf16": 584, "e4m3": 528, "e2m1": 288}


def vectors(dtype="bfloat16", seed=0):
    random = numpy.random.default_rng(seed)
    magnitudes = numpy.exp2(random.integers(-8, 8, (len(SLOTS), DIMS // 16, 1)))
    values = random.standard_normal((len(SLOTS), DIMS // 16, 16)) * magnitudes
    return values.reshape(len(SLOTS), DIMS).astype(dtype)


def cache(row_format):
    if row_format == "bf16":
        return numpy.zeros((PAGES, PAGE_SIZE, DIMS), ml_dtypes.bfloat16)
    return numpy.zeros((PAGES, PAGE_SIZE, ROW_BYTES[row_format]), "uint8")


def quantised(x, row_format):
    """The data and the scales of vectors, as bytes."""
    values = x.astype("float32")
    if row_format == "bf16":
        return values.astype(ml_dtypes.bfloat16).view("uint8"), None
    if row_format == "e2m1":
        groups = values.reshape(len(x), -1, 16)
        amax = abs(groups).max(axis=2)
        scales = (amax / numpy.float32(6)).astype(ml_dtypes.float8_e4m3fn)
        factors = 1 / numpy.maximum(scales.astype("float32"), numpy.float32(1e-12))
        codes = (groups * factors[..., None]).astype(ml_dtypes.float4_e2m1fn)
        codes = codes.view("uint8").reshape(len(x), -1, 2)
        return codes[..., 0] | codes[..., 1] << 4, scales.view("uint8")
    coded, size = (448, 64) if row_format == "e4m3_bf16" else (512, 32)
    groups = values[:, :coded].reshape(len(x), -1, size)
    amax = numpy.maximum(abs(groups).max(axis=2), 1e-4)
    exponents = numpy.ceil(numpy.log2(amax.astype("float64") / 448))
    codes = (groups / numpy.exp2(exponents)[..., None]).astype(ml_dtypes.float8_e4m3fn)
    rest = values[:, coded:].astype(ml_dtypes.bfloat16).view("uint8")
    data = numpy.concatenate([codes.view("uint8").reshape(len(x), -1), rest], axis=1)
    return data, (exponents + 127).astype("uint8")


def expected_cache(x, row_format):
    expected = cache(row_format)
    data, scales = quantised(x, row_format)
    pages = expected.view("uint8").reshape(PAGES, -1)
    for token, slot in enumerate(SLOTS):
        if slot < 0:
            continue
        page, row = divmod(slot, PAGE_SIZE)
        size = data.shape[1]
        if row_format == "e4m3_bf16":
            pages[page, row * size : (row + 1) * size] = data[token]
            first = PAGE_SIZE * size + row * 8
            pages[page, first : first + 7] = scales[token]
        else:
            first = row * ROW_BYTES[row_format]
            whole = data[token] if scales is None else [*data[token], *scales[token]]
            pages[page, first : first + ROW_BYTES[row_format]] = whole
    return expected


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("row_format", ROW_BYTES)
def test_quantising(row_format, dtype):
    x, rows = vectors(dtype), cache(row_format)
    assert tilewright.quantize_kv_rows(x, rows, SLOTS) is None
    expected = expected_cache(x, row_format)
    assert (rows.view("uint8") == expected.view("uint8")).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("row_format", ROW_BYTES)
def test_back_again(row_format, dtype):
    """E4M3 is off by 1/16 of a value at most, E2M1 by a step of its largest."""
    x, rows = vectors("float32"), cache(row_format)
    tilewright.quantize_kv_rows(x, rows, SLOTS)
    out = tilewright.dequantize_kv_rows(rows, SLOTS, dtype=dtype)
    assert out.dtype == dtype
    stored = SLOTS >= 0
    actual, x = out[stored].astype("float32"), x[stored]
    size = 16 if row_format == "e2m1" else 64
    largest = abs(x).reshape(-1, size).max(axis=1, keepdims=True)
    difference = abs(actual - x).reshape(-1, size)
    if row_format == "e2m1":
        assert (difference <= 0.2 * largest + 2**-9).all()
    else:
        assert (difference <= abs(x).reshape(-1, size) / 15.5 + largest * 2**-17).all()


def test_pages_padded_as_flashmlas():
    padded = -(-PAGE_SIZE * 584 // 576) * 576
    memory = numpy.zeros((PAGES, padded), "uint8")
    rows = numpy.lib.stride_tricks.as_strided(memory, (PAGES, PAGE_SIZE, 584), (padded, 584, 1))
    x = vectors()
    tilewright.quantize_kv_rows(x, rows, SLOTS)
    assert (rows == expected_cache(x, "e4m3_bf16")).all()
    out = numpy.zeros((len(SLOTS), DIMS), "float32")
    assert tilewright.dequantize_kv_rows(rows, SLOTS, out=out, dtype="float32") is out
    assert (out[:, 448:][SLOTS >= 0] == x[:, 448:][SLOTS >= 0].astype("float32")).all()
    assert (out[1] == 0).all()


def test_pytorch_on_the_cpu():
    torch = pytest.importorskip("torch")
    x, rows = vectors("float32"), torch.zeros(PAGES, PAGE_SIZE, 584, dtype=torch.uint8)
    slots = torch.from_numpy(SLOTS)
    tilewright.quantize_kv_rows(torch.from_numpy(x), rows, slots)
    assert (rows.numpy() == expected_cache(x, "e4m3_bf16")).all()
    out = tilewright.dequantize_kv_rows(rows, slots)
    assert out.dtype == torch.bfloat16 and out.shape == (5, DIMS)


def test_pytorchs_operators():
    torch = pytest.importorskip("torch")
    operators = pytest.importorskip("tilewright.torch")
    x = torch.from_numpy(vectors("float32"))
    slots = torch.tensor([3, 4, 23, 10, 8])
    for rows in (
        torch.zeros(PAGES, PAGE_SIZE, 528, dtype=torch.uint8),
        torch.zeros(PAGES, PAGE_SIZE, DIMS, dtype=torch.bfloat16),
    ):
        torch.library.opcheck(operators.quantize_kv_rows, (x, rows, slots))
        torch.library.opcheck(operators.dequantize_kv_rows, (rows, slots), {"dtype": "float32"})
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = [mode.from_tensor(tensor) for tensor in (x, rows, slots)]
        tilewright.quantize_kv_rows(*fakes)
        out = tilewright.dequantize_kv_rows(*fakes[1:])
    assert out.shape == (5, DIMS) and out.dtype == torch.bfloat16


def test_torch_compile_takes_both_whole():
    torch = pytest.importorskip("torch")

    def step(x, rows, slots):
        tilewright.quantize_kv_rows(x * 2, rows, slots)
        return tilewright.dequantize_kv_rows(rows, slots, dtype="float32") + 1

    x, slots = torch.from_numpy(vectors("float32")), torch.tensor([3, 4, 23, 10, 8])
    caches = [torch.zeros(PAGES, PAGE_SIZE, 584, dtype=torch.uint8) for _ in range(2)]
    expected = step(x, caches[0], slots)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, caches[1], slots), expected, rtol=0, atol=0)
    torch.testing.assert_close(caches[1], caches[0], rtol=0, atol=0)


def test_jax_is_refused():
    jax = pytest.importorskip("jax")
    ones = jax.numpy.ones((1, DIMS))
    with pytest.raises(InvalidArgumentError, match="rows: is an array of JAX"):
        tilewright.quantize_kv_rows(ones, ones[None], ones)


# name: (the arguments that change, exception, argument at fault, a part of the message)
WRONG = {
    "a list": ({"x": [1.0]}, ArgumentTypeError, "x", "is a builtins.list"),
    "FP16": (
        {"x": vectors("float16")},
        *(InvalidArgumentError, "x", "has dtype fp16, must be fp32 or bf16"),
    ),
    "dims": ({"x": vectors()[:, :448]}, InvalidArgumentError, "x", "dims is 448, must equal a"),
    "rows of 576": (
        {"rows": numpy.zeros((3, 8, 576), "uint8")},
        *(InvalidArgumentError, "rows", "has rows of 576 u8, must be of 512 bf16, or of 584"),
    ),
    "FP32 rows": (
        {"rows": numpy.zeros((3, 8, 512), "float32")},
        *(InvalidArgumentError, "rows", "has rows of 512 fp32, must be of 512 bf16"),
    ),
    "slots of 32 bits": (
        {"slot_mapping": SLOTS.astype("int32")},
        *(InvalidArgumentError, "slot_mapping", "has dtype int32, must be int64"),
    ),
    "a slot beyond": (
        {"slot_mapping": numpy.array([0, 1, 2, 3, 24])},
        *(InvalidArgumentError, "slot_mapping", "is 24 for row 4, must be -1 or less than 24"),
    ),
    "a slot below": (
        {"slot_mapping": numpy.array([0, 1, -2, 3, 4])},
        *(InvalidArgumentError, "slot_mapping", "is -2 for row 2, must be -1 or less than 24"),
    ),
    "a slot twice": (
        {"slot_mapping": numpy.array([0, 1, 2, 0, -1])},
        *(InvalidArgumentError, "slot_mapping", "gives slot 0 to rows 0 and 3"),
    ),
    "a check of 1": ({"check_values": 1}, ArgumentTypeError, "check_values", "must be True"),
    "a kernel": ({"kernel": "k4"}, InvalidArgumentError, "kernel", "is 'k4', must be one of"),
    "a GPU's kernel": (
        {"kernel": "hopper"},
        *(InvalidArgumentError, "x", "is on cpu, kernel hopper takes"),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls(nothing_is_written, refused, name):
    change, exception, argument, message = WRONG[name]
    arguments = {"x": vectors(), "rows": cache("e4m3"), "slot_mapping": SLOTS} | change
    with nothing_is_written(arguments["rows"]), refused(exception, argument, message):
        tilewright.quantize_kv_rows(**arguments)


def test_wrong_dtype(refused):
    with refused(InvalidArgumentError, "dtype", "is 'float16', must be 'float32' or"):
        tilewright.dequantize_kv_rows(cache("e4m3"), SLOTS, dtype="float16")
