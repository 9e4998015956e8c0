"""tilewright.torch.NVFP4Linear on the CPU."""

import copy

import pytest

import tilewright

torch = pytest.importorskip("torch")

from tilewright.torch import NVFP4Linear

IN, OUT = 144, 70


def checkpoint(kind, bias=True, seed=0):
    """A layer's tensors, and what it computes with in float64: (tensors, weight, bias)."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(OUT, IN, generator=generator)
    codes, scales, global_scale = tilewright.quantize_nvfp4(values, global_scale_kind=kind)
    weight = tilewright.dequantize_nvfp4(codes, scales, global_scale, global_scale_kind=kind)
    if kind == "decode":
        tensors = {"weight": codes, "weight_scale": scales, "weight_scale_2": global_scale[0]}
    else:
        tensors = {
            "weight_packed": codes,
            "weight_scale": scales,
            "weight_global_scale": global_scale,
        }
    if bias:
        tensors["bias"] = torch.randn(OUT, generator=generator).bfloat16()
    return tensors, weight.double(), tensors["bias"].double() if bias else 0.0


@pytest.mark.parametrize("kind", ["decode", "encode"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(IN,), (5, IN), (2, 3, 4, IN)])
def test_it_is_right(kind, bias, dtype, shape):
    tensors, weight, added = checkpoint(kind, bias)
    layer = NVFP4Linear.from_tensors(tensors)
    x = torch.randn(shape).to(dtype)
    out = layer(x)
    assert out.dtype is dtype and out.shape == (*shape[:-1], OUT)
    expected = x.double() @ weight.T + added
    rounding = 2**-8 if dtype is torch.bfloat16 else 2**-11
    assert torch.linalg.norm(out.double() - expected) < rounding * torch.linalg.norm(expected)


@pytest.mark.parametrize("kind", ["decode", "encode"])
def test_a_model_loads_it_and_saves_it(kind):
    tensors, _, _ = checkpoint(kind)
    model = torch.nn.Sequential(torch.nn.Identity(), NVFP4Linear(IN, OUT, dtype=torch.bfloat16))
    state = {f"1.{name}": tensor for name, tensor in tensors.items()}
    result = model.load_state_dict(state | {"1.input_scale": torch.ones(())})
    assert not result.missing_keys and not result.unexpected_keys
    saved = model.state_dict()
    assert saved.keys() == state.keys()
    for name, tensor in state.items():
        assert saved[name].dtype is tensor.dtype and saved[name].shape == tensor.shape
        assert torch.equal(saved[name].float(), tensor.float())


def test_conversions_of_a_model_leave_the_weight_alone():
    tensors, _, _ = checkpoint("decode")
    layer = NVFP4Linear.from_tensors(tensors)
    x = torch.randn(3, IN).half()
    expected = layer(x)
    assert torch.equal(copy.deepcopy(layer).bfloat16()(x), expected)


def test_activations_of_any_strides_and_of_no_rows():
    layer = NVFP4Linear.from_tensors(checkpoint("encode")[0])
    x = torch.randn(IN, 6).bfloat16().T
    assert torch.equal(layer(x), layer(x.contiguous()))
    assert layer(x[:0]).shape == (0, OUT)


def test_before_loading_it_has_a_weight_of_zeros():
    layer = NVFP4Linear(IN, OUT, bias=False)
    assert not layer(torch.randn(3, IN).bfloat16()).any()


def test_a_layer_without_memory_takes_the_tensors_device():
    tensors, _, _ = checkpoint("decode", bias=False)
    layer = NVFP4Linear(IN, OUT, bias=False, device="meta")
    layer.load_state_dict(tensors)
    x = torch.randn(3, IN).bfloat16()
    assert torch.equal(layer(x), NVFP4Linear.from_tensors(tensors)(x))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: t.pop("weight_scale_2"), 'Missing key.*"weight_scale_2"'),
        (lambda t: t.pop("bias"), 'Missing key.*"bias"'),
        (lambda t: t.update(zero_point=torch.zeros(1)), 'Unexpected key.*"zero_point"'),
        (
            lambda t: t.update(weight=torch.zeros(OUT, IN)),
            r"weight: is .*float32 of shape \(70, 144\), must be .*uint8 of shape \(70, 72\)",
        ),
        (
            lambda t: t.update(weight_scale=t["weight_scale"][:, :8]),
            r"weight_scale: is .* of shape \(70, 8\), must be .* of shape \(70, 9\)",
        ),
        (
            lambda t: t.update(weight_scale_2=torch.ones(2)),
            r"weight_scale_2: is .* of shape \(2,\), must be .* of shape \(\) or \(1,\)",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused(spoil, message):
    tensors, _, _ = checkpoint("decode")
    spoil(tensors)
    layer = NVFP4Linear(IN, OUT)
    with pytest.raises(RuntimeError, match=message):
        layer.load_state_dict(tensors)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: NVFP4Linear(40, 8), "in_features: is 40, must be a multiple of 16"),
        (lambda: NVFP4Linear(16, 0), "out_features: is 0, must be at least 1"),
        (lambda: NVFP4Linear.from_tensors({}), "tensors: has no 'weight'"),
        (
            lambda: NVFP4Linear.from_tensors({"weight": torch.zeros(8)}),
            "weight: has rank 1, must have rank 2",
        ),
        (lambda: NVFP4Linear(16, 8)(torch.zeros(2, 16)), "a: has dtype fp32, must be bf16, fp16"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(tilewright.InvalidArgumentError, match=message):
        call()
