"""tilewright.torch.NVFP4Linear on the CPU, and on a GPU where there is one."""

import copy
import math
import pickle

import pytest

import tilewright

torch = pytest.importorskip("torch")

import tilewright._torch_linear as torch_linear
from tilewright._early_reads import Launch
from tilewright.torch import NVFP4Linear

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
IN, OUT = 144, 80  # multiples of 16, as a GPU takes


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=needs_cuda)])
def device(request):
    return request.param


def checkpoint(kind, bias=True, seed=0, rows=OUT):
    """A layer's tensors, and what it computes with in float64: (tensors, weight, bias)."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, IN, generator=generator)
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
        tensors["bias"] = torch.randn(rows, generator=generator).bfloat16()
    return tensors, weight.double(), tensors["bias"].double() if bias else 0.0


def on(device, tensors):
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def assert_is_right(layer, x, weight, added):
    out = layer(x)
    assert out.dtype is x.dtype and out.device == x.device
    assert out.shape == (*x.shape[:-1], len(weight))
    expected = x.cpu().double() @ weight.T + added
    rounding = 2**-8 if x.dtype is torch.bfloat16 else 2**-11
    difference = out.cpu().double() - expected
    assert torch.linalg.norm(difference) < rounding * torch.linalg.norm(expected)


@pytest.mark.parametrize("rows", [1, 70])
def test_any_number_of_outputs_on_the_cpu(rows):
    tensors, weight, added = checkpoint("decode", rows=rows)
    layer = NVFP4Linear.from_tensors(tensors)
    assert_is_right(layer, torch.randn(5, IN).bfloat16(), weight, added)


@pytest.mark.parametrize("kind", ["decode", "encode"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(IN,), (5, IN), (2, 3, 4, IN)])
def test_it_is_right(device, kind, bias, dtype, shape):
    tensors, weight, added = checkpoint(kind, bias)
    layer = NVFP4Linear.from_tensors(on(device, tensors))
    assert_is_right(layer, torch.randn(shape).to(device, dtype), weight, added)


@pytest.mark.parametrize("kind", ["decode", "encode"])
@pytest.mark.parametrize("shape", [(), (1,), (OUT,), (OUT, 1)])
def test_global_scales_are_of_the_matrix_or_of_its_rows(device, kind, shape):
    tensors, weight, added = checkpoint(kind)
    name = "weight_scale_2" if kind == "decode" else "weight_global_scale"
    factors = torch.linspace(-3, 3, OUT).exp2() if OUT in shape else torch.tensor([3.0])
    weight = weight * factors.double()[:, None]
    global_scale = tensors[name] * factors if kind == "decode" else tensors[name] / factors
    tensors[name] = global_scale.reshape(shape)
    layer = NVFP4Linear.from_tensors(on(device, tensors))
    assert_is_right(layer, torch.randn(5, IN).to(device, torch.float16), weight, added)
    assert torch.equal(layer.state_dict()[name].cpu(), tensors[name])


@pytest.mark.parametrize("device_of_tensors", ["cpu", pytest.param("cuda", marks=needs_cuda)])
def test_the_weight_is_packed_on_the_layers_device(device, device_of_tensors, monkeypatch):
    tensors, weight, added = checkpoint("decode")
    devices = []

    def prepack(*arrays, out):
        devices.extend(array.device.type for array in (*arrays, out))
        return tilewright.prepack_nvfp4_weight(*arrays, out=out)

    monkeypatch.setattr(torch_linear, "prepack_nvfp4_weight", prepack)
    layer = NVFP4Linear(IN, OUT, device=device, dtype=torch.bfloat16)
    layer.load_state_dict(on(device_of_tensors, tensors))
    assert devices == [device] * 3
    assert layer.packed.device.type == layer.global_scale_bits.device.type == device
    assert_is_right(layer, torch.randn(5, IN).to(device, torch.bfloat16), weight, added)


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_batch_invariance_is_asked_for(device, batch_invariant, monkeypatch):
    tensors = on(device, checkpoint("decode")[0])
    layer = NVFP4Linear.from_tensors(tensors, batch_invariant=batch_invariant)
    same = NVFP4Linear(IN, OUT, device=device, batch_invariant=batch_invariant)
    assert layer.batch_invariant is same.batch_invariant is batch_invariant
    asked = []

    def gemm(*arrays, **options):
        asked.append(options["batch_invariant"])
        return tilewright.gemm_nvfp4(*arrays, **options)

    monkeypatch.setattr(torch_linear, "gemm_nvfp4", gemm)
    x = torch.randn(300, IN).to(device, torch.bfloat16)
    rows, row = layer(x), layer(x[7])
    assert asked == [batch_invariant] * 2
    if batch_invariant:
        assert torch.equal(row, rows[7])


@pytest.mark.parametrize("kind", ["decode", "encode"])
def test_a_model_loads_it_and_saves_it(device, kind):
    tensors, _, _ = checkpoint(kind)
    layer = NVFP4Linear(IN, OUT, device=device, dtype=torch.bfloat16)
    model = torch.nn.Sequential(torch.nn.Identity(), layer)
    state = {f"1.{name}": tensor for name, tensor in tensors.items()}
    result = model.load_state_dict(state | {"1.input_scale": torch.ones(())})
    assert not result.missing_keys and not result.unexpected_keys
    saved = model.state_dict()
    assert saved.keys() == state.keys()
    for name, tensor in state.items():
        assert saved[name].dtype is tensor.dtype and saved[name].shape == tensor.shape
        assert saved[name].device.type == device
        assert torch.equal(saved[name].cpu().float(), tensor.float())


def test_conversions_of_a_model_leave_the_weight_alone(device):
    layer = NVFP4Linear.from_tensors(checkpoint("decode")[0]).to(device)
    x = torch.randn(3, IN).to(device, torch.float16)
    expected = layer(x)
    assert torch.equal(copy.deepcopy(layer).bfloat16()(x), expected)


def test_activations_of_any_strides_and_of_no_rows(device):
    layer = NVFP4Linear.from_tensors(on(device, checkpoint("encode")[0]))
    x = torch.randn(IN, 6).to(device, torch.bfloat16).T
    assert torch.equal(layer(x), layer(x.contiguous()))
    assert layer(x[:0]).shape == (0, OUT)


def test_before_loading_it_has_a_weight_of_zeros(device):
    layer = NVFP4Linear(IN, OUT, bias=False, device=device)
    assert not layer(torch.randn(3, IN).to(device, torch.bfloat16)).any()


def test_parameters_are_loaded():
    tensors, weight, added = checkpoint("decode")
    for name in ("weight_scale", "weight_scale_2"):
        tensors[name] = torch.nn.Parameter(tensors[name])
    layer = NVFP4Linear.from_tensors(tensors)
    assert_is_right(layer, torch.randn(5, IN).bfloat16(), weight, added)


def test_a_layer_without_memory_takes_the_tensors_device(device):
    tensors = on(device, checkpoint("decode", bias=False)[0])
    layer = NVFP4Linear(IN, OUT, bias=False, device="meta")
    layer.load_state_dict(tensors)
    x = torch.randn(3, IN).to(device, torch.bfloat16)
    assert torch.equal(layer(x), NVFP4Linear.from_tensors(tensors)(x))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: t.pop("weight_scale_2"), 'Missing key.*"weight_scale_2"'),
        (lambda t: t.pop("bias"), 'Missing key.*"bias"'),
        (lambda t: t.update(zero_point=torch.zeros(1)), 'Unexpected key.*"zero_point"'),
        (
            lambda t: t.update(weight=torch.zeros(OUT, IN)),
            r"weight: is .*float32 of shape \(80, 144\), must be .*uint8 of shape \(80, 72\)",
        ),
        (
            lambda t: t.update(weight_scale=t["weight_scale"][:, :8]),
            r"weight_scale: is .* of shape \(80, 8\), must be .* of shape \(80, 9\)",
        ),
        (lambda t: t.update(weight_scale_2=0.5), "weight_scale_2: is 0.5, must be a tensor"),
        (
            lambda t: t.update(weight_scale_2=torch.ones(2)),
            r"weight_scale_2: is .* \(2,\), must be .* \(\) or \(1,\) or \(80,\) or \(80, 1\)",
        ),
        (
            lambda t: t.update(weight_scale_2=torch.ones(1, OUT)),
            r"weight_scale_2: is .* of shape \(1, 80\), must be",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused(spoil, message):
    tensors, _, _ = checkpoint("decode")
    spoil(tensors)
    layer = NVFP4Linear(IN, OUT)
    with pytest.raises(RuntimeError, match=message):
        layer.load_state_dict(tensors)


@pytest.mark.parametrize("kind", ["decode", "encode"])
@pytest.mark.parametrize("value", [0.0, -0.0, -1.0, math.nan, math.inf, -math.inf])
def test_global_scales_that_are_not_positive_and_finite_are_refused(device, kind, value):
    tensors, _, _ = checkpoint(kind)
    name = "weight_scale_2" if kind == "decode" else "weight_global_scale"
    layer = NVFP4Linear(IN, OUT, device=device)
    rows = torch.ones(OUT, 1)
    rows[30:] = value
    for wrong, where in ((torch.tensor(value), ""), (rows, " in row 30")):
        message = f"{name}: has the value {value}{where}, must be positive and finite"
        with pytest.raises(RuntimeError, match=message):
            layer.load_state_dict(on(device, tensors | {name: wrong}))
        assert not layer.packed.any()


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
        (
            lambda: NVFP4Linear(16, 8)(torch.zeros(3, 48)),
            r"x: has shape \(3, 48\), must be",
        ),
        (lambda: NVFP4Linear(16, 8)(torch.zeros(0, 7)), r"x: has shape \(0, 7\), must be"),
        (lambda: NVFP4Linear(16, 8)(torch.zeros(())), r"x: has shape \(\), must be"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(tilewright.InvalidArgumentError, match=message):
        call()


def test_a_compiled_model_calls_it_as_it_is():
    layer = NVFP4Linear.from_tensors(checkpoint("decode")[0])
    x = torch.randn(3, IN).bfloat16()
    compiled = torch.compile(lambda x: layer(2 * x) + 1, backend="eager")
    assert torch.equal(compiled(x), layer(2 * x) + 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: NVFP4Linear(16.0, 8), "in_features: is 16.0, must be an integer"),
        (lambda: NVFP4Linear(16, "8"), "out_features: is '8', must be an integer"),
        (
            lambda: NVFP4Linear.from_tensors({"weight": [1]}),
            r"weight: is \[1\], must be a tensor",
        ),
        (
            lambda: NVFP4Linear.from_tensors({"weight": torch.zeros(8, 8), "bias": 0.5}),
            "bias: is 0.5, must be a tensor",
        ),
        (
            lambda: NVFP4Linear(16, 8, batch_invariant="no"),
            "batch_invariant: is 'no', must be True or False",
        ),
    ],
)
def test_arguments_of_wrong_types_are_named(call, message):
    with pytest.raises(tilewright.ArgumentTypeError, match=message):
        call()


@pytest.mark.parametrize("kind", ["decode", "encode"])
@pytest.mark.parametrize("shape", [(), (OUT, 1)])
def test_loading_again_keeps_the_memory(device, kind, shape):
    states = [on(device, checkpoint(kind, seed=seed)[0]) for seed in (0, 1)]
    name = "weight_scale_2" if kind == "decode" else "weight_global_scale"
    for state in states:
        state[name] = state[name].reshape(1).expand(math.prod(shape)).reshape(shape)
    layer = NVFP4Linear.from_tensors(states[0])

    def addresses():
        return [x.data_ptr() for x in (layer.packed, layer.global_scale_bits, layer.bias)]

    before = addresses()
    layer.load_state_dict(states[1])
    assert addresses() == before
    x = torch.randn(5, IN).to(device, torch.bfloat16)
    assert torch.equal(layer(x), NVFP4Linear.from_tensors(states[1])(x))


def test_as_many_global_scales_as_are_loaded(device):
    tensors, weight, added = checkpoint("decode")
    layer = NVFP4Linear.from_tensors(on(device, tensors))
    tensors["weight_scale_2"] = tensors["weight_scale_2"].repeat(OUT)
    layer.load_state_dict(on(device, tensors))
    assert_is_right(layer, torch.randn(5, IN).to(device, torch.bfloat16), weight, added)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_graph_multiplies_by_what_was_loaded_since():
    states = [on("cuda", checkpoint("decode", seed=seed)[0]) for seed in (0, 1)]
    layer = NVFP4Linear.from_tensors(states[0])
    x = torch.randn(5, IN, device="cuda").bfloat16()
    layer(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer(x)
    layer.load_state_dict(states[1])
    torch.cuda.empty_cache()
    graph.replay()
    assert torch.equal(out, layer(x))
    assert torch.equal(out, NVFP4Linear.from_tensors(states[1])(x))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", ["pre_quant_scale", "input_quantizer._pre_quant_scale"])
def test_a_scale_of_activations_is_refused(name, strict):
    tensors, _, _ = checkpoint("decode")
    tensors[name] = torch.ones(IN)
    model = torch.nn.Sequential(NVFP4Linear(IN, OUT))
    state = {f"0.{key}": tensor for key, tensor in tensors.items()}
    with pytest.raises(RuntimeError, match=f"0.{name}: is given, must be left out"):
        model.load_state_dict(state, strict=strict)
    assert not model[0].packed.any()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_a_copy_has_the_same_layout(copied, monkeypatch):
    layer = NVFP4Linear.from_tensors(checkpoint("decode")[0])
    x = torch.randn(3, IN).bfloat16()
    assert torch.equal(copied(layer)(x), layer(x))
    layer.weight_layout = 2  # as one of another version has
    message = "weight_layout: is 2, must be 1: load a checkpoint again"
    with pytest.raises(tilewright.InvalidArgumentError, match=message):
        copied(layer)
    del layer.weight_layout
    with pytest.raises(tilewright.InvalidArgumentError, match="weight_layout: is None, must be 1"):
        copied(layer)


def test_gradients_are_refused_where_they_would_be_lost(device):
    layer = NVFP4Linear.from_tensors(on(device, checkpoint("decode")[0]))
    x = torch.randn(3, IN).to(device, torch.bfloat16)
    expected = layer(x)
    x.requires_grad_()
    for rows in (x, x[:0]):
        with pytest.raises(tilewright.UnsupportedError, match="^x: requires a gradient, which"):
            layer(rows)
    with torch.no_grad():
        assert torch.equal(layer(x), expected)
    assert torch.equal(layer(x.detach()), expected)
    layer.bias.requires_grad_()
    with pytest.raises(tilewright.UnsupportedError, match="^bias: requires a gradient"):
        layer(x.detach())


def test_whether_it_reads_early_is_forgotten_where_the_weight_is_another(device):
    layer = NVFP4Linear.from_tensors(on(device, checkpoint("decode")[0]))
    changes = (
        lambda: layer.load_state_dict(on(device, checkpoint("decode", seed=1)[0])),
        lambda: layer.to(device),
    )
    for change in changes:
        layer._reads.launched(Launch((4096, 0), stream=0, is_early=False))
        assert copy.deepcopy(layer)._reads._written is None
        change()
        assert layer._reads._written is None
