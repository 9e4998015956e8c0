"""The operator of DeepSeek-V4's attention: traced, compiled, checked by PyTorch.

On the CPU, and on a GPU where there is one.
"""

import shutil

import pytest

import tilewright
from tilewright import Dsv4Scope

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx

import tilewright.torch
from dsv4_cases import cache, ints, make_q
from test_dsv4_attention import DEVICES
from torch_modes import SeenByDispatch

OPERATOR = torch.ops.tilewright.dsv4_attention.default


@pytest.fixture(params=DEVICES)
def call(request):
    device = request.param
    indices = ints([[[5, -1, 3]], [[0, 7, 1]]], device)
    ends = ints([[9], [4]], device)
    return make_q(2, 1, 8, device), cache("e4m3_bf16", 2, 16, device), ends, indices


def attend(q, rows, ends, indices):
    """A piece of a model."""
    window = Dsv4Scope(rows, range_end=ends, ring=16, most_keys=16)
    compressed = Dsv4Scope(rows, indices=indices)
    out, lse = tilewright.dsv4_attention(
        q * 2, window=window, compressed=compressed, return_lse=True
    )
    return out + 1, lse.exp()


def test_pytorchs_own_checks(call):
    q, rows, ends, indices = call
    options = {"window_rows": rows, "window_range_end": ends, "compressed_rows": rows}
    options["compressed_indices"] = indices
    for returns in ({}, {"return_lse": True}, {"normalize": False}, {"quantize": True}):
        tests = ("test_schema", "test_faketensor", "test_autograd_registration")
        torch.library.opcheck(OPERATOR, (q,), options | returns, test_utils=tests)


def test_the_fake_has_the_shapes_of_all_results(call):
    q, rows, ends, _ = call
    arguments = {"window_rows": rows, "window_range_end": ends}
    for returns in ({}, {"return_lse": True}, {"normalize": False}, {"quantize": True}):
        real = OPERATOR(q, **arguments, **returns)
        with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
            fake = OPERATOR(q, **arguments, **returns)
        assert [(t.shape, t.dtype) for t in real] == [(t.shape, t.dtype) for t in fake]


def test_tracing(call):
    graph = make_fx(attend, tracing_mode="fake")(*call)
    assert OPERATOR in [node.target for node in graph.graph.nodes]
    for traced, direct in zip(graph(*call), attend(*call), strict=True):
        assert torch.equal(traced, direct)


def test_a_dispatch_mode_sees_the_operator(call):
    with SeenByDispatch() as seen:
        attend(*call)
    assert OPERATOR in seen.operators


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_compiling(call):
    compiled = torch.compile(attend, fullgraph=True)
    for result, direct in zip(compiled(*call), attend(*call), strict=True):
        assert torch.allclose(result, direct, atol=1e-5)
