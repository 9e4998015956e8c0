"""dsv4_attention() beside the same in PyTorch, on the CPU, and on a GPU where there is one."""

import itertools

import numpy
import pytest

import tilewright
from tilewright import ArgumentTypeError, Dsv4Scope, InvalidArgumentError, UnsupportedError

torch = pytest.importorskip("torch")

from dsv4_cases import ROW_BYTES, attend, cache, ints, make_q, near, values


def runs_on_cuda():
    if not torch.cuda.is_available():
        return False
    kernels = [each for each in tilewright.kernels() if each.operation == "dsv4_attention"]
    return any(each.device == "cuda" and each.why_not is None for each in kernels)


needs_cuda = pytest.mark.skipif(not runs_on_cuda(), reason="needs a kernel on a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_cuda)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("row_format", ROW_BYTES)
def test_a_range_and_a_list(row_format, device):
    q = make_q(2, 2, 8, device)
    window_rows = cache(row_format, 5, 64, device, seed=2)
    rows = cache(row_format, 4, 16, device, seed=3)
    table = ints([[4, 0, 2], [1, 3, 3]], device)
    ends = ints([[150, 151], [3, 4]], device)
    begins = (ends - 100).clamp(min=0)
    indices = ints([[[5, -1, 63, 5], [0, 1, 2, 3]], [[9, 9, -1, 7], [-1, -1, -1, -1]]], device)
    lengths = ints([4, 3], device)
    sinks = torch.linspace(-2, 3, 8, device=device)

    def keys_of(b, i):
        positions = range(int(begins[b, i]), int(ends[b, i]))
        slots = [int(table[b, p // 64]) * 64 + p % 64 for p in positions]
        chosen = [slot for slot in indices[b, i, : lengths[b]].tolist() if slot >= 0]
        return torch.cat([values(window_rows)[slots], values(rows)[chosen]])

    out, lse = tilewright.dsv4_attention(
        q,
        window=Dsv4Scope(window_rows, range_end=ends, range_begin=begins, block_table=table),
        compressed=Dsv4Scope(rows, indices=indices, list_lengths=lengths),
        sinks=sinks,
        return_lse=True,
    )
    expected, expected_lse, _ = attend(q, keys_of, sinks)
    assert out.dtype == q.dtype and near(out, expected)
    assert torch.allclose(lse.cpu().double(), expected_lse, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_packed_fresh_rows_and_a_ring(device):
    q = make_q(1, 4, 8, device)[0]
    fresh = make_q(1, 4, 1, device, seed=5)[0, :, 0] * 0.5
    rows = cache("e4m3_bf16", 2, 16, device)
    ends = ints([20, 20, 7, 0], device)  # the last belongs to no request
    begins = (ends - 10).clamp(min=0)
    scope = Dsv4Scope(rows, range_end=ends, range_begin=begins, ring=12, most_keys=10)
    cu_seqlens = ints([0, 2, 3], device)
    out = tilewright.dsv4_attention(q, window=scope, fresh_rows=fresh, cu_seqlens_q=cu_seqlens)

    def keys_of(_, row):
        request, first = (0, 0) if row < 2 else (1, 2)
        slots = [request * 16 + p % 12 for p in range(int(begins[row]), int(ends[row]))]
        return torch.cat([values(rows)[slots], fresh[first : row + 1].double()])

    expected, _, _ = attend(q[None, :3], keys_of)
    assert near(out[:3], expected[0])


@pytest.mark.parametrize("device", DEVICES)
def test_inverse_rope_and_e4m3(device):
    q = make_q(1, 2, 8, device)
    rows = cache("bf16", 1, 32, device)
    scope = Dsv4Scope(rows, range_end=ints([[30, 31]], device))
    cos, sin = (table.to(device) for table in _tables(40))
    positions = torch.tensor([[39, 2]], device=device)
    rotation = {"rotary_cos": cos, "rotary_sin": sin, "positions": positions}
    plain = tilewright.dsv4_attention(q, window=scope)
    rotated = tilewright.dsv4_attention(q, window=scope, **rotation)
    back = tilewright.rope(plain.reshape(2, 8, 512), cos, sin, positions[0], inverse=True)
    assert near(rotated, back.reshape(plain.shape).cpu().double())

    out, scale = tilewright.dsv4_attention(q, window=scope, quantize=True, **rotation)
    assert out.dtype == torch.float8_e4m3fn and scale.shape == (1, 2, 8, 4)
    assert (scale.log2() == scale.log2().round()).all()
    dequantized = out.cpu().double() * scale.cpu().double().repeat_interleave(128, dim=-1)
    assert torch.allclose(dequantized, rotated.cpu().double(), rtol=0.07, atol=1e-2)


@pytest.mark.parametrize("device", DEVICES)
def test_parts_merge(device):
    q = make_q(3, 1, 16, device)
    rows = cache("e4m3", 6, 16, device)
    sinks = torch.linspace(-1, 2, 16, device=device)
    table = ints([[0, 1], [2, 3], [4, 5]], device)
    cuts = [ints([[0], [0], [0]], device), ints([[9], [0], [32]], device), ints([[30]] * 3, device)]
    cuts[2] = torch.maximum(cuts[1], cuts[2])
    scopes = [
        Dsv4Scope(rows, range_begin=begin, range_end=end, block_table=table)
        for begin, end in itertools.pairwise(cuts)
    ]
    parts = [tilewright.dsv4_attention(q, window=scope, normalize=False) for scope in scopes]
    o, row_max, row_sum = (torch.stack(each) for each in zip(*parts, strict=True))
    statistics = {"row_max": row_max[..., 0].mT, "row_sum": row_sum[..., 0].mT}
    merged = tilewright.merge_states(o[:, :, 0], **statistics, sinks=sinks)
    whole = Dsv4Scope(rows, range_end=cuts[2], block_table=table)
    expected = tilewright.dsv4_attention(q, window=whole, sinks=sinks)
    assert near(merged.to(q.dtype), expected[:, 0].cpu().double())


def test_numpy():
    q = numpy.random.default_rng(0).standard_normal((1, 1, 4, 512), "float32")
    rows = cache("e2m1", 1, 8)
    scope = Dsv4Scope(rows.numpy(), indices=numpy.array([[[1, 6]]], "int32"))
    out, scale = tilewright.dsv4_attention(q, compressed=scope, quantize=True)
    assert out.dtype == "uint8" and scale.shape == (1, 1, 4, 4)
    expected, _, _ = attend(torch.from_numpy(q), lambda *_: values(rows)[[1, 6]])
    assert near(torch.from_numpy(tilewright.dsv4_attention(q, compressed=scope)), expected)


def test_rows_without_keys():
    q = make_q(1, 1, 4)
    scope = Dsv4Scope(cache("bf16", 1, 4), range_end=ints([[0]]))
    out, lse = tilewright.dsv4_attention(q, window=scope, return_lse=True)
    assert (out == 0).all() and (lse == -torch.inf).all()


@pytest.mark.parametrize(
    ("change", "argument", "words"),
    [
        ({"window": None}, "window.rows", "neither compressed nor fresh_rows"),
        ({"window": "ring"}, "window", "must be a Dsv4Scope"),
        ({"window": Dsv4Scope(cache("bf16", 1, 4))}, "window.range_end", "is absent"),
        ({"window": Dsv4Scope(cache("bf16", 1, 4), ring="a")}, "window.ring", "an integer"),
        ({"window": Dsv4Scope(cache("bf16", 1, 4), most_keys=1.5)}, "window.most_keys", "1.5"),
        (
            {"window": Dsv4Scope(cache("bf16", 1, 4), range_end=ints([[5]]))},
            "window.range_end",
            "is 5 for token 0 of request 0",
        ),
        ({"softmax_scale": -1.0}, "softmax_scale", "at least 0"),
        ({"quantize": True, "normalize": False}, "quantize", "must be False without normalize"),
        ({"normalize": False, "return_lse": True}, "return_lse", "must be False"),
        ({"kernel": "fast"}, "kernel", "must be one of"),
        ({"sinks": ints([1] * 4)}, "sinks", "fp32"),
        ({"quantize": True, "out": torch.zeros(1, 1, 4, 512)}, "out", "float8_e4m3fn"),
    ],
)
def test_wrong_arguments(change, argument, words):
    q = make_q(1, 1, 4)
    arguments = {"window": Dsv4Scope(cache("bf16", 1, 4), range_end=ints([[3]]))} | change
    errors = (InvalidArgumentError, ArgumentTypeError, UnsupportedError)
    with pytest.raises(errors, match=words) as error:
        tilewright.dsv4_attention(q, **arguments)
    assert error.value.argument == argument


def _tables(positions):
    cos, sin = tilewright.rope_tables(positions, theta=10000.0)
    return torch.as_tensor(cos), torch.as_tensor(sin)
