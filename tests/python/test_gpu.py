"""attention() on CUDA tensors of PyTorch, CuPy and JAX. Skipped where there is no GPU for it."""

import json
import os

import numpy
import pytest

import tilewright
from reference import ERROR_LIMITS, assert_close, packed_attention, relative_error
from tilewright import InvalidArgumentError, UnsupportedError

# JAX would take most of the GPU's memory, which it shares with PyTorch here.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

try:
    import torch
except ImportError:
    torch = None

pytestmark = pytest.mark.skipif(
    torch is None or not torch.cuda.is_available(), reason="needs PyTorch and a CUDA device"
)

KERNELS = [
    kernel
    for kernel in tilewright.kernels()
    if kernel.operation == "attention" and kernel.device == "cuda"
]
FASTEST = KERNELS[-1].name
POISON = 7.0
LONG_WAIT_CYCLES = 200_000_000  # about a tenth of a second


@pytest.fixture(params=KERNELS, ids=lambda kernel: kernel.name)
def kernel(request):
    if request.param.why_not:
        pytest.skip(request.param.why_not)
    return request.param.name


def make_qkv(batch=2, q_len=130, kv_len=200, heads=4, kv_heads=2, head_dim=128, seed=0):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return [
        torch.randn((batch, length, count, head_dim), generator=generator, device="cuda").bfloat16()
        for length, count in ((q_len, heads), (kv_len, kv_heads), (kv_len, kv_heads))
    ]


def assert_right(out, lse, *qkv, **options):
    tensors = [x.double().cpu().numpy() for x in (*qkv, out)]
    lse = None if lse is None else lse.cpu().numpy()
    assert_close(tensors[3], lse, *tensors[:3], "bfloat16", **options)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 1), (130, 200), (200, 130), (64, 512)])
def test_matches_float64(kernel, q_len, kv_len, head_dim, causal):
    q, k, v = make_qkv(q_len=q_len, kv_len=kv_len, head_dim=head_dim)
    out = torch.full_like(q, torch.nan)
    result, lse = tilewright.attention(
        q, k, v, causal=causal, kernel=kernel, return_lse=True, out=out
    )
    assert result is out
    assert lse.dtype == torch.float32
    assert_right(out, lse, q, k, v, causal=causal)


def test_no_kernel_named():
    q, k, v = make_qkv()
    out = tilewright.attention(q, k, v, softmax_scale=0.2)
    assert_right(out, None, q, k, v, softmax_scale=0.2)


def kernels_with(feature):
    rows = [row for row in KERNELS if row.takes(feature)]
    return pytest.mark.parametrize("kernel", rows, ids=lambda row: row.name, indirect=True)


@kernels_with("packed")
def test_packed_sequences(kernel):
    (q,), (k,), (v,) = make_qkv(batch=1, q_len=300, kv_len=400)
    cu_seqlens_q = torch.tensor([0, 1, 1, 131, 300], dtype=torch.int32, device="cuda")
    cu_seqlens_k = torch.tensor([0, 90, 100, 100, 400], dtype=torch.int32, device="cuda")
    lengths = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    results = tilewright.attention(
        q, k, v, causal=True, kernel=kernel, return_lse=True, check_lengths=True, **lengths
    )
    expected = packed_attention(
        *(x.double().cpu().numpy() for x in (q, k, v)),
        *(x.cpu().numpy() for x in (cu_seqlens_q, cu_seqlens_k)),
        causal=True,
    )
    assert relative_error(results[0].double().cpu(), expected[0]) <= ERROR_LIMITS["bfloat16"]
    numpy.testing.assert_allclose(results[1].cpu(), expected[1], rtol=0, atol=1e-3)


@kernels_with("unnormalized")
def test_unnormalized_result(kernel):
    q, k, v = make_qkv()
    out, row_max, row_sum = tilewright.attention(q, k, v, kernel=kernel, normalize=False)
    assert out.dtype == row_max.dtype == row_sum.dtype == torch.float32
    out /= row_sum.transpose(1, 2).unsqueeze(3)
    assert_right(out, row_max + row_sum.log(), q, k, v)


@kernels_with("packed")
def test_wrong_lengths_are_found_where_asked(kernel):
    (q,), (k,), (v,) = make_qkv(batch=1)
    falling = torch.tensor([0, 90, 80], dtype=torch.int32, device="cuda")
    lengths = {"cu_seqlens_q": falling, "cu_seqlens_k": falling}
    with pytest.raises(InvalidArgumentError, match="cu_seqlens_q: falls from 90 to 80"):
        tilewright.attention(q, k, v, kernel=kernel, check_lengths=True, **lengths)


def test_strided_tensors(kernel):
    packed = torch.randn(2, 150, 3, 4, 64, device="cuda").bfloat16()
    q, k, v = packed.unbind(2)
    memory = torch.full((2, 4, 150, 2, 64), POISON, device="cuda", dtype=torch.bfloat16)
    out = memory[:, :, :, 0].transpose(1, 2)
    tilewright.attention(q, k, v, kernel=kernel, out=out)
    assert_right(out, None, q, k, v)
    assert (memory[:, :, :, 1] == POISON).all()


def test_two_runs_are_bit_equal(kernel):
    q, k, v = make_qkv(q_len=500, kv_len=700)
    first, second = (
        tilewright.attention(q, k, v, causal=True, kernel=kernel) for _ in range(2)
    )  # fmt: skip
    assert torch.equal(first, second)


def test_works_on_the_current_stream_without_synchronising(kernel):
    q, k, v = make_qkv()
    tilewright.attention(q, k, v, kernel=kernel)  # the first call of a kernel may load it
    side = torch.cuda.Stream()
    zeros = torch.zeros_like(q)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(LONG_WAIT_CYCLES)
        late_q = zeros + q  # not there before the wait is over
        out = tilewright.attention(late_q, k, v, kernel=kernel)
    assert not side.query(), "the call waited for the stream"
    assert torch.cuda.default_stream().query(), "the default stream waits for the side stream"
    side.synchronize()
    assert_right(out, None, q, k, v)


@pytest.mark.parametrize("as_handle", [False, True])
def test_works_on_the_stream_that_is_given(as_handle):
    q, k, v = make_qkv()
    side = torch.cuda.Stream()
    zeros = torch.zeros_like(q)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(LONG_WAIT_CYCLES)
        late_q = zeros + q
    out = tilewright.attention(late_q, k, v, stream=side.cuda_stream if as_handle else side)
    side.synchronize()
    assert_right(out, None, q, k, v)


def test_is_captured_in_a_cuda_graph(kernel):
    q, k, v = make_qkv()
    out = torch.full_like(q, torch.nan)
    tilewright.attention(q, k, v, kernel=kernel)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tilewright.attention(q, k, v, kernel=kernel, causal=True, out=out)
        fresh = tilewright.attention(q, k, v, kernel=kernel)
    for tensor, value in zip((q, k, v), make_qkv(seed=1), strict=True):
        tensor.copy_(value)
    graph.replay()
    assert_right(out, None, q, k, v, causal=True)
    assert_right(fresh, None, q, k, v)


def test_cupy():
    cupy = pytest.importorskip("cupy")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    tensors = make_qkv()
    torch.cuda.synchronize()
    q, k, v = (cupy.asarray(x.view(torch.int16)).view(ml_dtypes.bfloat16) for x in tensors)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        out, lse = tilewright.attention(q, k, v, return_lse=True)
        stream.synchronize()
    assert isinstance(out, cupy.ndarray) and out.dtype == q.dtype
    out = torch.as_tensor(out.view(cupy.int16), device="cuda").view(torch.bfloat16)
    assert_right(out, torch.as_tensor(lse, device="cuda"), *tensors)


def test_jax():
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX has no GPU backend here")
    tensors = make_qkv()
    q, k, v = (
        jax.numpy.asarray(x.float().cpu().numpy(), dtype=jax.numpy.bfloat16) for x in tensors
    )
    expected = tilewright.attention(*tensors).float().cpu().numpy()
    big = jax.numpy.ones((4096, 4096))
    for _ in range(20):  # inputs are computed just before, for long, and dropped just after
        late = (big @ big @ big @ big @ big @ big)[0, 0] * 0
        out = tilewright.attention(q + late.astype(q.dtype), k + 0, v + 0)
        junk = [jax.numpy.full(q.shape, POISON, q.dtype) for _ in range(4)]
        assert isinstance(out, jax.Array) and out.dtype == q.dtype
        numpy.testing.assert_array_equal(numpy.asarray(out, dtype=numpy.float32), expected)
        assert (junk[0] == POISON).all()


def shifted(x):
    """A copy that starts two bytes past a multiple of 16."""
    memory = torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)
    return memory[1:].view(x.shape).copy_(x)


def padded(x):
    """A copy whose rows lie an odd number of elements apart."""
    memory = torch.zeros((*x.shape[:3], x.shape[3] + 1), dtype=x.dtype, device=x.device)
    return memory[..., :-1].copy_(x)


WRONG_TENSORS = {
    "a misaligned pointer": (shifted, InvalidArgumentError, "must be aligned to 16 bytes"),
    "misaligned rows": (padded, InvalidArgumentError, "multiple of 8 elements"),
    "on the CPU": (lambda x: x.cpu(), InvalidArgumentError, "is on cpu"),
}


@pytest.mark.parametrize("name", WRONG_TENSORS)
@pytest.mark.parametrize("argument", ["k", "v", "out"])
def test_wrong_tensor(kernel, refused, argument, name):
    change, exception, message = WRONG_TENSORS[name]
    q, k, v = make_qkv()
    tensors = {"q": q, "k": k, "v": v, "out": torch.full_like(q, POISON)}
    out = tensors["out"]
    tensors[argument] = change(tensors[argument])
    with refused(exception, argument, message, out, tensors["out"]):
        tilewright.attention(**tensors, kernel=kernel)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.float(), "q: has dtype fp32, kernel"),
        (lambda x: x[..., :80].contiguous(), "q: has head_dim 80, kernel"),
    ],
)
def test_unsupported_problem(kernel, refused, change, message):
    q, k, v = (change(x) for x in make_qkv())
    out = torch.full_like(q, POISON)
    with refused(UnsupportedError, "q", message, out) as raised:
        tilewright.attention(q, k, v, kernel=kernel, out=out)
    assert raised.value.code == "unsupported"


def test_k1_refuses_scores_that_do_not_fit():
    rows = 131072
    if torch.cuda.mem_get_info()[1] >= 4 * 16 * rows**2:
        pytest.skip("a GPU with more than a terabyte of memory")
    q, k, v = (
        torch.zeros((1, rows, 16, 64), dtype=torch.bfloat16, device="cuda") for _ in range(3)
    )  # fmt: skip
    with pytest.raises(UnsupportedError, match=f"workspace: .*{4 * 16 * rows**2} bytes"):
        tilewright.attention(q, k, v, kernel="k1")


def test_race_on_the_gpu(tmp_path, ran):
    pytest.importorskip("jsonschema")
    from test_results import VALIDATOR
    from tilewright.bench import __main__ as bench

    path = tmp_path / "race.jsonl"
    arguments = ["attention", "--device=cuda", "--seqlen=512", "--headdim=64", "--tokens=2048"]
    arguments += ["--samples=5", "--gap=0.01", "--check", f"--kernels={FASTEST}", f"--json={path}"]
    assert bench.main(arguments) == 0
    for line in map(json.loads, ran(path.read_text().splitlines(), "lines")):
        VALIDATOR.validate(line)
        assert line["supported"], line["reason"]
        assert line["sm_clock_mhz"] > 0 and line["cold_l2"]
