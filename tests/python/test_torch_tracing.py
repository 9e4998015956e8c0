"""What traces or watches PyTorch sees attention's operator; what has no operator refuses it."""

import contextlib

import pytest

import tilewright
from tilewright import InvalidArgumentError, UnsupportedError

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

import tilewright.torch
from torch_modes import SeenByDispatch

OPERATOR = torch.ops.tilewright.attention


def make(seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((2, 17, 4, 32), (2, 33, 2, 32), (2, 33, 2, 32))
    return [torch.randn(shape, generator=generator) for shape in shapes]


def causal(q, k, v):
    return tilewright.attention(q, k, v, causal=True)


class SeenByFunction(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.functions = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.functions.append(function)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "options",
    [
        {"tracing_mode": "real"},
        {"tracing_mode": "fake"},
        {"tracing_mode": "symbolic"},
        {"tracing_mode": "real", "pre_dispatch": True},
    ],
)
def test_a_graph_of_make_fx_has_the_operator(options):
    traced = make_fx(causal, **options)(*make())
    targets = [node.target for node in traced.graph.nodes if node.op == "call_function"]
    assert targets[0] is OPERATOR.default
    assert torch.equal(traced(*make(seed=1)), causal(*make(seed=1)))


def test_a_jit_trace_has_the_operator():
    traced = torch.jit.trace(causal, make(), check_trace=False)
    assert torch.equal(traced(*make(seed=1)), causal(*make(seed=1)))


def test_dispatch_modes_see_the_operator():
    qkv = make()
    with SeenByDispatch() as seen:
        out = causal(*qkv)
    assert seen.operators == [OPERATOR.default]
    assert torch.equal(out, causal(*qkv))


def test_function_modes_see_the_operator():
    with SeenByFunction() as seen:
        causal(*make())
    assert OPERATOR.default in seen.functions


def test_profilers_see_the_operator():
    with torch.profiler.profile() as profile:
        causal(*make())
    assert "tilewright::attention" in {event.key for event in profile.key_averages()}


def test_flops_are_those_of_both_products():
    with FlopCounterMode(display=False) as counter:
        causal(*make())
    assert counter.get_total_flops() == 2 * 2 * 4 * 17 * 33 * (32 + 32)


def test_flops_of_packed_sequences_are_those_of_each():
    q, k, v = (x[0] for x in make())
    cu_seqlens_q, cu_seqlens_k = (
        torch.tensor(ends, dtype=torch.int32) for ends in ((0, 7, 17), (0, 3, 33))
    )
    with FlopCounterMode(display=False) as counter:
        tilewright.attention(q, k, v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    assert counter.get_total_flops() == 2 * (7 * 3 + 10 * 30) * 4 * (32 + 32)


@pytest.mark.parametrize("argument", ["out", "stream"])
def test_what_a_traced_call_cannot_take(refused, argument):
    q, k, v = make()
    given = {argument: torch.empty_like(q) if argument == "out" else 0}
    with SeenByDispatch() as seen, refused(InvalidArgumentError, argument, ""):
        tilewright.attention(q, k, v, **given)
    assert not seen.operators
    with SeenByFunction():
        out = tilewright.attention(q, k, v, **given)
    assert torch.equal(out, tilewright.attention(q, k, v))


# Each without an operator, on tensors made outside of what traces it.
CODES, SCALES, GLOBAL_SCALE = tilewright.quantize_nvfp4(
    torch.randn(64, 128), global_scale_kind="encode"
)
PACKED = tilewright.prepack_nvfp4_weight(CODES, SCALES)
A = torch.randn(3, 128).bfloat16()
LAYER = tilewright.torch.NVFP4Linear.from_tensors(
    {"weight_packed": CODES, "weight_scale": SCALES, "weight_global_scale": GLOBAL_SCALE}
)
WITHOUT_OPERATOR = {
    "quantize_nvfp4": ("x", lambda x: tilewright.quantize_nvfp4(x, global_scale_kind="encode"), A),
    "dequantize_nvfp4": ("codes", lambda x: tilewright.dequantize_nvfp4(x, SCALES), CODES),
    "swizzle_scales": ("linear", lambda x: tilewright.swizzle_scales(x), SCALES),
    "unswizzle_scales": (
        *("swizzled", lambda x: tilewright.unswizzle_scales(x, 64, 8)),
        tilewright.swizzle_scales(SCALES),
    ),
    "prepack_nvfp4_weight": ("codes", lambda x: tilewright.prepack_nvfp4_weight(x, SCALES), CODES),
    "unpack_nvfp4_weight": ("packed", lambda x: tilewright.unpack_nvfp4_weight(x, 64, 128), PACKED),
    "gemm_nvfp4": ("a", lambda x: tilewright.gemm_nvfp4(x, PACKED, n=64), A),
    "gemm_bf16": ("a", lambda x: tilewright.gemm_bf16(x, x), A),
    "NVFP4Linear": ("x", LAYER, A),
    "NVFP4Linear, no rows": ("x", LAYER, A[:0]),
}
TRACERS = {
    "make_fx": lambda function, x: make_fx(function)(x),
    "make_fx, symbolic": lambda function, x: make_fx(function, tracing_mode="symbolic")(x),
    "make_fx, before dispatch": lambda function, x: make_fx(function, pre_dispatch=True)(x),
    "jit.trace": lambda function, x: torch.jit.trace(function, (x,), check_trace=False),
    "export": lambda function, x: torch.export.export(Wrapped(function), (x,), strict=False),
    "FLOPs": lambda function, x: inside(FlopCounterMode(display=False), function, x),
    "a dispatch mode": lambda function, x: inside(SeenByDispatch(), function, x),
    "fake tensors": lambda function, x: on_a_fake_tensor(function, x),
}


class Wrapped(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def inside(context: contextlib.AbstractContextManager, function, x):
    with context:
        return function(x)


def on_a_fake_tensor(function, x):
    mode = torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)
    return function(mode.from_tensor(x))


@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize("name", WITHOUT_OPERATOR)
def test_what_has_no_operator_refuses_to_be_traced(refused, name, tracer):
    argument, function, x = WITHOUT_OPERATOR[name]
    with torch.no_grad(), refused(UnsupportedError, argument, "no operator for this"):
        TRACERS[tracer](function, x)
