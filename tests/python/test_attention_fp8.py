"""attention_fp8() and rotate_quantize() on the CPU, beside the same in NumPy."""

import numpy
import pytest

import tilewright
from tilewright import InvalidArgumentError, UnsupportedError
from tilewright.flash_attn import flash_attn_func, flash_attn_varlen_func

torch = pytest.importorskip("torch")
ml_dtypes = pytest.importorskip("ml_dtypes")

BATCH, LEN, HEADS, KV_HEADS, DIM = 2, 150, 4, 2, 64
STARTS = torch.tensor([0, 0, 70, 300], dtype=torch.int32)


def normal(*shape, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


@pytest.fixture
def qkv():
    return [
        normal(BATCH, LEN, heads, DIM, seed=seed)
        for seed, heads in enumerate((HEADS, KV_HEADS, KV_HEADS))
    ]


def quantized(qkv, **options):
    """attention_fp8()'s arguments, of q and k rotated, and of v."""
    q, k, v = qkv
    arguments = {"descale_rows": options.get("descale_rows", 128)}
    for name, x in {"q": q, "k": k}.items():
        arguments[name], arguments[f"{name}_descale"] = tilewright.rotate_quantize(
            x, seed=3, **options
        )
    arguments["v"], arguments["v_descale"] = tilewright.rotate_quantize(v, **options)
    return arguments


def relative_error(actual, expected):
    return ((actual.float() - expected.float()).norm() / expected.float().norm()).item()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("descale_rows", [64, 128])
def test_quantised_attention_is_near_attention(qkv, causal, descale_rows):
    expected, lse = tilewright.attention(*qkv, causal=causal, return_lse=True)
    arguments = quantized(qkv, descale_rows=descale_rows)
    out, fp8_lse = tilewright.attention_fp8(**arguments, causal=causal, return_lse=True)
    assert out.dtype == torch.bfloat16 and out.shape == expected.shape
    assert relative_error(out, expected) < 0.06
    assert (fp8_lse - lse).abs().max() < 0.15


def powers_of_two(descale):
    """The least powers of two that are not below the descales."""
    mantissa, exponent = descale.frexp()
    return torch.where(mantissa == 0.5, descale, torch.ones_like(descale).ldexp(exponent))


def codes_of(rows, descale):
    """E4M3 codes of rows (L, H, D) under descales (H, blocks of 128 rows)."""
    of_rows = descale.repeat_interleave(128, 1)[:, : len(rows)]
    return (rows.float() / of_rows.T[..., None]).to(torch.float8_e4m3fn)


def test_transposed_values_give_the_same_bits(qkv):
    arguments = quantized(qkv)
    columns, descale = tilewright.rotate_quantize(qkv[2], transposed=True)
    assert columns.shape == (BATCH, KV_HEADS, DIM, 160)
    assert (descale == powers_of_two(arguments["v_descale"])).all()
    assert not columns[..., LEN:].view(torch.uint8).any()
    arguments["v_descale"] = descale
    arguments["v"] = torch.stack([codes_of(*x) for x in zip(qkv[2], descale, strict=True)])
    expected = tilewright.attention_fp8(**arguments)
    del arguments["v"]
    assert (tilewright.attention_fp8(**arguments, v_transposed=columns) == expected).all()


def test_packed_rows_are_those_of_their_sequences(qkv):
    x = qkv[0].reshape(-1, HEADS, DIM)
    codes, descale = tilewright.rotate_quantize(x, seed=1, cu_seqlens=STARTS, descale_rows=64)
    assert descale.shape == (HEADS, 300 // 64 + 3)
    for b, (first, end) in enumerate(zip(STARTS[:-1].tolist(), STARTS[1:].tolist(), strict=True)):
        if first == end:
            continue
        alone, its_descale = tilewright.rotate_quantize(x[None, first:end], seed=1, descale_rows=64)
        assert (codes[first:end].view(torch.uint8) == alone[0].view(torch.uint8)).all()
        block = first // 64 + b
        assert (descale[:, block : block + its_descale.shape[2]] == its_descale[0]).all()


def codes_of_packed(x, descale):
    """The same of packed rows, whose sequences have blocks of their own."""
    codes = torch.zeros(x.shape, dtype=torch.float8_e4m3fn)
    for b, (first, end) in enumerate(zip(STARTS[:-1].tolist(), STARTS[1:].tolist(), strict=True)):
        codes[first:end] = codes_of(x[first:end], descale[:, first // 128 + b :])
    return codes


def test_packed_columns_begin_at_multiples_of_16(qkv):
    x = qkv[2].flatten(0, 1)
    _, of_rows = tilewright.rotate_quantize(x, cu_seqlens=STARTS)
    columns, descale = tilewright.rotate_quantize(x, cu_seqlens=STARTS, transposed=True)
    assert columns.shape == (KV_HEADS, DIM, 16 * (300 // 16 + 3))
    assert (descale == powers_of_two(of_rows)).all()
    codes = codes_of_packed(x, descale).view(torch.uint8)
    expected = torch.zeros(columns.shape, dtype=torch.uint8)
    for b, (first, end) in enumerate(zip(STARTS[:-1].tolist(), STARTS[1:].tolist(), strict=True)):
        column = 16 * (first // 16 + b)
        expected[..., column : column + end - first] = codes[first:end].permute(1, 2, 0)
    assert (columns.view(torch.uint8) == expected).all()


def test_packed_columns_give_the_same_bits(qkv):
    packed = [x.flatten(0, 1) for x in qkv]
    arguments = quantized(packed, cu_seqlens=STARTS)
    starts = {"cu_seqlens_q": STARTS, "cu_seqlens_k": STARTS}
    columns, descale = tilewright.rotate_quantize(packed[2], cu_seqlens=STARTS, transposed=True)
    arguments |= {"v": codes_of_packed(packed[2], descale), "v_descale": descale}
    expected = tilewright.attention_fp8(**arguments, **starts)
    del arguments["v"]
    out = tilewright.attention_fp8(**arguments, v_transposed=columns, **starts)
    assert (out == expected).all()


def test_statistics_merge_to_the_result(qkv):
    arguments = quantized(qkv)
    out, row_max, row_sum = tilewright.attention_fp8(**arguments, normalize=False)
    expected, lse = tilewright.attention_fp8(**arguments, return_lse=True, dtype="float16")
    assert expected.dtype == torch.float16
    normalized = out / row_sum.transpose(1, 2)[..., None]
    assert torch.allclose(normalized, expected.float(), atol=2e-3)
    assert torch.allclose(row_max + row_sum.log(), lse, atol=1e-4)


def test_numpy_has_bytes(qkv):
    arrays = [x.float().numpy() for x in qkv]
    arguments = {}
    for name, x in zip("qkv", arrays, strict=True):
        arguments[name], arguments[f"{name}_descale"] = tilewright.rotate_quantize(x)
        assert arguments[name].dtype == numpy.uint8
        values = arguments[name].view(ml_dtypes.float8_e4m3fn).astype("float32")
        scale = numpy.repeat(arguments[f"{name}_descale"], 128, axis=2)[:, :, :LEN]
        error = numpy.abs(values * scale.transpose(0, 2, 1)[..., None] - x)
        assert (error <= numpy.abs(x) / 16 + scale.transpose(0, 2, 1)[..., None] * 2**-10).all()
    out = tilewright.attention_fp8(**arguments, descale_rows=128, dtype="float16")
    expected = tilewright.attention(*arrays)
    assert relative_error(torch.from_numpy(out), torch.from_numpy(expected)) < 0.06


def test_a_fixed_descale_is_not_computed(qkv):
    codes = tilewright.rotate_quantize(qkv[0], fixed_descale=torch.tensor([0.5]))
    assert (codes.float() == (qkv[0].float() / 0.5).to(torch.float8_e4m3fn).float()).all()


def test_rope_comes_before_the_rotation(qkv):
    x = qkv[0].float()
    angles = torch.arange(LEN)[:, None] / 10.0 ** torch.arange(DIM // 2)
    cos, sin = angles.cos(), angles.sin()
    x1, x2 = x[..., : DIM // 2], x[..., DIM // 2 :]
    halves = (x1 * cos[:, None] - x2 * sin[:, None], x2 * cos[:, None] + x1 * sin[:, None])
    rotated = torch.cat(halves, -1)
    fused, fused_descale = tilewright.rotate_quantize(x, seed=2, rotary_cos=cos, rotary_sin=sin)
    plain, plain_descale = tilewright.rotate_quantize(rotated, seed=2)
    assert torch.allclose(fused_descale, plain_descale, rtol=1e-6)
    assert (fused.view(torch.uint8) != plain.view(torch.uint8)).float().mean() < 1e-3


@pytest.fixture
def e4m3(qkv):
    return [x.to(torch.float8_e4m3fn) for x in qkv]


def test_flash_attn_takes_descales(e4m3):
    descales = [torch.rand(BATCH, KV_HEADS) + 0.5 for _ in range(3)]
    named = dict(zip(("q_descale", "k_descale", "v_descale"), descales, strict=True))
    expected, lse = tilewright.attention_fp8(*e4m3, **named, causal=True, return_lse=True)
    actual = flash_attn_func(*e4m3, None, True, None, *descales, return_attn_probs=True)
    assert (actual[0] == expected).all() and (actual[1] == lse).all()
    group = HEADS // KV_HEADS
    exact = tilewright.attention(
        *(
            x.float() * scale.repeat_interleave(repeats, 1)[:, None, :, None]
            for x, scale, repeats in zip(e4m3, descales, (group, 1, 1), strict=True)
        ),
        causal=True,
    )
    assert relative_error(expected, exact) < 4e-3


def test_flash_attn_varlen_takes_descales(e4m3):
    starts = torch.arange(BATCH + 1, dtype=torch.int32) * LEN
    scale = torch.full((BATCH, KV_HEADS), 0.5)
    packed = [x.reshape(-1, x.shape[2], DIM) for x in e4m3]
    actual = flash_attn_varlen_func(*packed, starts, starts, LEN, LEN, k_descale=scale)
    expected = flash_attn_func(*e4m3, k_descale=scale)
    assert (actual == expected.reshape(actual.shape)).all()


def test_flash_attn_refuses_descales_of_other_dtypes(qkv):
    with pytest.raises(UnsupportedError, match="k_descale: is not supported"):
        flash_attn_func(*qkv, k_descale=torch.ones(BATCH, KV_HEADS))


@pytest.mark.parametrize(
    ("changed", "argument", "message"),
    [
        ({"descale_rows": 32}, "descale_rows", "is 32, must be 0, 64 or 128"),
        ({"descale_rows": True}, "descale_rows", "must be an integer"),
        ({"dtype": "float32"}, "dtype", "must be 'bfloat16' or 'float16'"),
        ({"k": torch.zeros(BATCH, LEN, KV_HEADS, DIM)}, "k", "must be uint8 or float8_e4m3fn"),
        ({"v": None}, "v", "is absent"),
        ({"k_descale": -torch.ones(1)}, "k_descale", "must be finite and at least 0"),
        ({"k_descale": torch.ones(2)}, "k_descale", "size is 2"),
        ({"kernel": "none"}, "kernel", "must be one of"),
    ],
)
def test_wrong_arguments_of_attention_are_named(e4m3, refused, changed, argument, message):
    arguments = dict(zip("qkv", e4m3, strict=True)) | changed
    with refused(tilewright.Error, argument, message):
        tilewright.attention_fp8(**arguments)


@pytest.mark.parametrize(
    ("changed", "argument", "message"),
    [
        ({"descale_rows": 0}, "descale_rows", "is 0, must be 64 or 128"),
        ({"seed": -1}, "seed", "must be from 0 to 2^63 - 1"),
        ({"seed": 1.5}, "seed", "must be an integer or None"),
        ({"x": torch.zeros(1, 2, 3, 48), "seed": 1}, "x", "must have a power of two"),
        ({"fixed_descale": torch.zeros(1)}, "fixed_descale", "at least FLT_MIN"),
        ({"positions": torch.zeros(BATCH, LEN, dtype=torch.int64)}, "positions", "must be absent"),
        ({"out": torch.zeros(3)}, "out", "must be uint8 or float8_e4m3fn"),
    ],
)
def test_wrong_arguments_of_quantising_are_named(qkv, refused, changed, argument, message):
    with refused(tilewright.Error, argument, message):
        tilewright.rotate_quantize(**{"x": qkv[0]} | changed)


def test_gradients_are_refused(qkv, refused):
    with refused(UnsupportedError, "x", "requires a gradient"):
        tilewright.rotate_quantize(qkv[0].requires_grad_())


def test_outs_of_a_wrong_shape_are_refused(qkv, refused):
    out = torch.zeros(BATCH, LEN, HEADS, 32, dtype=torch.uint8)
    with refused(InvalidArgumentError, "out", "head_dim is 32", out):
        tilewright.rotate_quantize(qkv[0], out=out)


@pytest.mark.parametrize("options", [{}, {"return_lse": True}, {"normalize": False}])
@pytest.mark.parametrize("transposed", [False, True])
def test_operator_of_attention_keeps_pytorchs_rules(qkv, options, transposed):
    import tilewright.torch as operators

    arguments = quantized(qkv)
    if transposed:
        del arguments["v"]
        arguments["v_transposed"] = tilewright.rotate_quantize(qkv[2], transposed=True)[0]
    for name, x in arguments.items():  # opcheck() does arithmetic that float8 has not
        if getattr(x, "dtype", None) == torch.float8_e4m3fn:
            arguments[name] = x.view(torch.uint8)
    torch.library.opcheck(operators.attention_fp8, (), arguments | options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"seed": 5},
        {"transposed": True},
        {"transposed": True, "cu_seqlens": STARTS},
        {"fixed_descale": torch.ones(1)},
        {"descale_rows": 64},
    ],
)
def test_operator_of_quantising_keeps_pytorchs_rules(qkv, options):
    import tilewright.torch as operators

    # The check of the schema does arithmetic on results that float8 has not.
    checks = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    x = qkv[0].flatten(0, 1) if "cu_seqlens" in options else qkv[0]
    torch.library.opcheck(operators.rotate_quantize, (x,), options, test_utils=checks)


def test_compiled_calls_are_whole(qkv):
    def attend(q, k, v):
        return tilewright.attention_fp8(**quantized((q, k, v)))

    compiled = torch.compile(attend, backend="eager", fullgraph=True)
    assert (compiled(*qkv) == attend(*qkv)).all()
