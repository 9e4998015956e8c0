"""What records no gradients refuses tensors that would lose theirs, by name."""

import pytest

import tilewright
from tilewright import UnsupportedError

torch = pytest.importorskip("torch")

N, K = 32, 64


def make(*shape, dtype=torch.bfloat16, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


ENCODE = {"global_scale_kind": "encode"}
CODES, SCALES, GLOBAL_SCALE = tilewright.quantize_nvfp4(make(N, K), **ENCODE)
A_CODES, SFA, GLOBAL_SCALE_A = tilewright.quantize_nvfp4(make(3, K), **ENCODE)


def quantize(x, global_scale):
    return tilewright.quantize_nvfp4(x, global_scale, **ENCODE)[0]


def dequantize(global_scale):
    return tilewright.dequantize_nvfp4(CODES, SCALES, global_scale, **ENCODE)


def multiply(a, global_scale_b, bias, residual):
    return tilewright.gemm_nvfp4(
        *(a, CODES, SCALES, global_scale_b),
        global_scale_b_kind="encode",
        bias=bias,
        residual=residual,
    )


def multiply_codes(global_scale_a):
    return tilewright.gemm_nvfp4(
        *(A_CODES, CODES, SCALES),
        sfa=SFA,
        global_scale_a=global_scale_a,
        global_scale_a_kind="encode",
    )


def multiply_into(out):
    return tilewright.gemm_nvfp4(make(3, K), CODES, SCALES, out=out)


# name: (function, its floating arguments)
CALLS = {
    "quantize_nvfp4": (quantize, {"x": make(N, K), "global_scale": GLOBAL_SCALE}),
    "dequantize_nvfp4": (dequantize, {"global_scale": GLOBAL_SCALE}),
    "gemm_nvfp4": (
        multiply,
        {
            "a": make(3, K),
            "global_scale_b": GLOBAL_SCALE,
            "bias": make(N),
            "residual": make(3, N),
        },
    ),
    "gemm_nvfp4 of codes": (multiply_codes, {"global_scale_a": GLOBAL_SCALE_A}),
    "gemm_nvfp4 into": (multiply_into, {"out": torch.empty(3, N)}),
}
PARAMETERS = [(name, argument) for name, (_, given) in CALLS.items() for argument in given]


@pytest.mark.parametrize(("name", "argument"), PARAMETERS)
def test_a_tensor_that_requires_a_gradient_is_refused(name, argument, refused):
    function, given = CALLS[name]
    expected = function(**given).clone()
    leaf = {argument: given[argument].clone().requires_grad_()}
    with refused(UnsupportedError, argument, "requires a gradient, which would be lost"):
        function(**(given | leaf))
    with torch.no_grad():
        assert torch.equal(function(**(given | leaf)), expected)
    assert torch.equal(function(**(given | {argument: leaf[argument].detach()})), expected)
