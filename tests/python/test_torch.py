"""The operator torch.ops.tilewright.attention: traced, compiled, exported, and without gradients.

On the CPU, and on a GPU where there is one.
"""

import io
import shutil

import numpy
import pytest

import tilewright
from tilewright import ArgumentTypeError, InvalidArgumentError, UnsupportedError

torch = pytest.importorskip("torch")

import tilewright.torch

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
LENGTHS = (40, 0, 60)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=needs_cuda)])
def qkv(request):
    dtype = torch.bfloat16 if request.param == "cuda" else torch.float32
    shapes = ((2, 50, 4, 64), (2, 70, 2, 64), (2, 70, 2, 64))
    generator = torch.Generator(device=request.param).manual_seed(0)
    return [
        torch.randn(shape, generator=generator, device=request.param).to(dtype) for shape in shapes
    ]


def step(q, k, v):
    """A piece of a model: an operation before, attention, operations after."""
    out, lse = tilewright.attention(q * 2, k, v, causal=True, return_lse=True)
    return out + 1, lse.exp()


def packed_step(q, k, v, cu_seqlens):
    return 2 * tilewright.attention(
        q.flatten(0, 1),
        k[:, :50].flatten(0, 1),
        v[:, :50].flatten(0, 1),
        cu_seqlens_q=cu_seqlens,
        cu_seqlens_k=cu_seqlens,
        window_size=(20, 0),
    )


def unnormalized_step(q, k, v):
    out, row_max, row_sum = tilewright.attention(q, k, v, normalize=False)
    return out / row_sum.transpose(1, 2).unsqueeze(3), row_max


class Model(torch.nn.Module):
    def forward(self, q, k, v):
        return step(q, k, v)


def lengths_of(q):
    ends = torch.tensor((0, *LENGTHS), dtype=torch.int32, device=q.device).cumsum(0)
    return ends.int()


def skip_where_unsupported(function, *arguments):
    try:
        return function(*arguments)
    except UnsupportedError as error:
        pytest.skip(str(error))


def assert_equal(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_to_one_graph(qkv, backend):
    torch.compiler.reset()
    if backend == "inductor" and not shutil.which("g++"):
        pytest.skip("inductor needs a C++ compiler")
    compiled = torch.compile(step, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(*qkv), step(*qkv))


@pytest.mark.parametrize("length", [50, 30])
def test_compiles_once_for_all_lengths(qkv, length):
    torch.compiler.reset()
    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    q, k, v = qkv
    assert_equal(compiled(q[:, :length], k, v), step(q[:, :length], k, v))


def test_packed_sequences_compile(qkv):
    torch.compiler.reset()
    cu_seqlens = lengths_of(qkv[0])
    expected = skip_where_unsupported(packed_step, *qkv, cu_seqlens)
    compiled = torch.compile(packed_step, fullgraph=True, backend="aot_eager")
    assert_equal(compiled(*qkv, cu_seqlens), expected)


def test_unnormalized_results_compile(qkv):
    torch.compiler.reset()
    expected = skip_where_unsupported(unnormalized_step, *qkv)
    compiled = torch.compile(unnormalized_step, fullgraph=True, backend="aot_eager")
    assert_equal(compiled(*qkv), expected)


@pytest.mark.parametrize("strict", [False, True])
def test_exports_whole(qkv, strict):
    program = torch.export.export(Model(), tuple(qkv), strict=strict)
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert torch.ops.tilewright.attention.default in targets
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    assert_equal(loaded(*qkv), step(*qkv))


@pytest.mark.parametrize(
    "options", [{}, {"return_lse": True, "causal": True}, {"softcap": 2.0, "window_size_left": 9}]
)
def test_operator_keeps_pytorchs_rules(qkv, options):
    skip_where_unsupported(lambda: torch.ops.tilewright.attention(*qkv, **options))
    torch.library.opcheck(tilewright.torch.attention, tuple(qkv), options)


def test_operator_keeps_pytorchs_rules_where_packed(qkv):
    q, k, v = (x[:, :50].flatten(0, 1) for x in qkv)
    cu_seqlens = lengths_of(q)
    arguments = (q, k, v, None, cu_seqlens, cu_seqlens)
    skip_where_unsupported(lambda: torch.ops.tilewright.attention(*arguments))
    # rows beyond the last sequence are not written: the lengths end with the last row
    torch.library.opcheck(tilewright.torch.attention, arguments, {"return_lse": True})


def test_fake_tensors(qkv):
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = [mode.from_tensor(x) for x in qkv]
        out, row_max, _ = tilewright.attention(*fakes, normalize=False)
    assert out.shape == qkv[0].shape and out.dtype == torch.float32
    assert row_max.shape == (2, 4, 50)


def test_parameters_are_read_where_no_gradients_are_recorded(qkv):
    parameters = [torch.nn.Parameter(x) for x in qkv]
    with torch.no_grad():
        out = tilewright.attention(*parameters)
    assert_equal(out, tilewright.attention(*qkv))
    assert not out.requires_grad


def test_backward_is_refused(qkv):
    q, k, v = qkv
    out = tilewright.attention(q, k, v.requires_grad_())
    assert_equal(out.detach(), tilewright.attention(q, k, v.detach()))
    with pytest.raises(UnsupportedError, match="q: needs a gradient: attention has no backward"):
        out.sum().backward()


def test_an_error_in_a_compiled_call_keeps_its_message(qkv):
    torch.compiler.reset()
    compiled = torch.compile(
        lambda q, k, v: tilewright.attention(q, k, v, window_size=(-3, 0)),
        fullgraph=True,
        backend="eager",
    )
    with pytest.raises(torch._dynamo.exc.Unsupported) as raised:
        compiled(*qkv)
    for part in ("InvalidArgumentError", "window_size", "each must be at least 0"):
        assert part in str(raised.value)


@pytest.mark.parametrize("argument", ["out", "stream"])
def test_what_a_traced_call_cannot_take(qkv, argument):
    q, k, v = qkv
    value = {"out": torch.empty_like(q), "stream": 0}[argument]
    with pytest.raises(InvalidArgumentError, match=f"{argument}: is given, must be None where"):
        tilewright.attention(q, k, v.requires_grad_(), **{argument: value})


def test_an_array_of_another_framework(qkv):
    q, k, v = qkv
    with pytest.raises(ArgumentTypeError, match="k: is an array of numpy, must be one of torch"):
        tilewright.attention(q.requires_grad_(), numpy.zeros(k.shape), v)


def test_wrong_arguments_of_the_operator_are_named(qkv):
    q, k, v = qkv
    with pytest.raises(InvalidArgumentError, match="softmax_scale: is -1"):
        torch.ops.tilewright.attention(q, k, v, softmax_scale=-1.0)
    with pytest.raises(InvalidArgumentError, match="k: head_dim is 32, must equal q's 64"):
        torch.ops.tilewright.attention(q, k[..., :32], v)
