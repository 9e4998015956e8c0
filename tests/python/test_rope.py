"""rope() and rope_tables() on the CPU, beside NumPy, PyTorch and Transformers."""

import math

import numpy
import pytest

import tilewright
from tilewright import ArgumentTypeError, InvalidArgumentError

pytest.importorskip("ml_dtypes")

TOKENS, HEADS, DIM, ROTARY = 5, 3, 64, 16
POSITIONS = numpy.array([0, 7, 30, 31, 2], "int64")
DEEPSEEK = {
    "window": {},
    "compressed": {"theta": 160000, "yarn_factor": 16},
}


def inputs(dtype="float32", shape=(TOKENS, HEADS, DIM), seed=0):
    x = numpy.random.default_rng(seed).standard_normal(shape, "float32").astype(dtype)
    cos, sin = tilewright.rope_tables(32, dims=ROTARY)
    return {"x": x, "rotary_cos": cos, "rotary_sin": sin, "positions": POSITIONS}


def rotated(x, rotary_cos, rotary_sin, positions, interleaved, rotates_last, inverse):
    cos, sin = (table[positions][:, None] for table in (rotary_cos, rotary_sin))
    sin = -sin if inverse else sin
    out = x.astype("float32")
    dims = out[..., DIM - ROTARY :] if rotates_last else out[..., :ROTARY]
    first = slice(0, ROTARY, 2) if interleaved else slice(0, ROTARY // 2)
    second = slice(1, ROTARY, 2) if interleaved else slice(ROTARY // 2, ROTARY)
    x1, x2 = dims[..., first].copy(), dims[..., second].copy()
    dims[..., first] = x1 * cos - x2 * sin
    dims[..., second] = x2 * cos + x1 * sin
    return out.astype(x.dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("rotates_last", [True, False])
@pytest.mark.parametrize("inverse", [True, False])
def test_beside_numpy(dtype, interleaved, rotates_last, inverse):
    arguments = inputs(dtype)
    options = {"interleaved": interleaved, "rotates_last": rotates_last, "inverse": inverse}
    expected = rotated(**arguments, **options)
    out = tilewright.rope(**arguments, **options)
    assert out.dtype == dtype and (out == expected).all()
    assert tilewright.rope(**arguments, **options, out=arguments["x"]) is arguments["x"]
    assert (arguments["x"] == expected).all()


def test_one_head_and_back():
    arguments = inputs(shape=(TOKENS, DIM))
    out = tilewright.rope(**arguments)
    assert not numpy.allclose(out, arguments["x"])
    back = tilewright.rope(**(arguments | {"x": out}), inverse=True)
    numpy.testing.assert_allclose(back, arguments["x"], atol=1e-5)


# ---- Tables


@pytest.mark.parametrize("layers", DEEPSEEK)
def test_tables_beside_the_models_own_formula(layers):
    """PyTorch's cosines of angles in FP32, whose frequencies are FP32 too."""
    torch = pytest.importorskip("torch")
    theta = DEEPSEEK[layers].get("theta", 10000)
    frequencies = 1 / theta ** (torch.arange(0, 64, 2, dtype=torch.float32) / 64)
    if "yarn_factor" in DEEPSEEK[layers]:
        low, high = (
            rounded(64 * math.log(65536 / (2 * math.pi * turns)) / (2 * math.log(theta)))
            for rounded, turns in ((math.floor, 32), (math.ceil, 1))
        )
        ramp = ((torch.arange(32) - low) / (high - low)).clamp(0, 1)
        frequencies = frequencies / 16 * ramp + frequencies * (1 - ramp)
    cos, sin = tilewright.rope_tables(100_000, **DEEPSEEK[layers])
    angles = torch.outer(torch.arange(1000, dtype=torch.float32), frequencies)
    torch.testing.assert_close(torch.from_numpy(cos[:1000]), angles.cos(), rtol=0, atol=2e-4)
    torch.testing.assert_close(torch.from_numpy(sin[:1000]), angles.sin(), rtol=0, atol=2e-4)
    assert abs(cos**2 + sin**2 - 1).max() < 1e-6


@pytest.mark.parametrize("layers", DEEPSEEK)
def test_frequencies_beside_transformers(layers):
    """At position 1 an angle is the frequency."""
    pytest.importorskip("torch")
    utilities = pytest.importorskip("transformers.modeling_rope_utils")
    transformers = pytest.importorskip("transformers")
    options = DEEPSEEK[layers]
    theta = float(options.get("theta", 10000))
    parameters = {"rope_type": "default", "rope_theta": theta}
    if "yarn_factor" in options:
        parameters |= {
            "rope_type": "yarn",
            "factor": 16.0,
            "original_max_position_embeddings": 65536,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
        }
    config = transformers.PretrainedConfig(
        head_dim=64,
        hidden_size=64,
        num_attention_heads=1,
        max_position_embeddings=1_048_576,
        rope_parameters=parameters,
        rope_theta=theta,
    )
    if "yarn_factor" in options:
        expected, _ = utilities.ROPE_INIT_FUNCTIONS["yarn"](config)
        expected = expected.numpy()
    else:
        expected = theta ** (-numpy.arange(0, 64, 2) / 64)
    cos, sin = tilewright.rope_tables(2, **options)
    frequencies = numpy.arctan2(sin[1].astype("float64"), cos[1])
    numpy.testing.assert_allclose(frequencies, expected, rtol=1e-6)


# ---- PyTorch


def test_pytorchs_operator():
    torch = pytest.importorskip("torch")
    operators = pytest.importorskip("tilewright.torch")
    arguments = {name: torch.from_numpy(array) for name, array in inputs().items()}
    for options in ({}, {"interleaved": False, "inverse": True}):
        torch.library.opcheck(operators.rope, (), arguments | options)
    compiled = torch.compile(
        lambda x, **rest: tilewright.rope(x * 2, **rest) + 1, fullgraph=True, backend="aot_eager"
    )
    expected = tilewright.rope(**(arguments | {"x": arguments["x"] * 2})) + 1
    torch.testing.assert_close(compiled(**arguments), expected, rtol=0, atol=0)
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = {name: mode.from_tensor(tensor) for name, tensor in arguments.items()}
        assert tilewright.rope(**fakes).shape == (TOKENS, HEADS, DIM)


# ---- Wrong calls

# name: (the arguments that change, exception, argument at fault, a part of the message)
WRONG = {
    "a list": ({"x": [1.0]}, ArgumentTypeError, "x", "is a builtins.list"),
    "integers": ({"x": numpy.ones((5, 64), "int32")}, InvalidArgumentError, "x", "int32"),
    "more rotated dims": (
        {"x": numpy.ones((TOKENS, 8), "float32")},
        *(InvalidArgumentError, "rotary_cos", "has 8 pairs, must have at most half of x's"),
    ),
    "positions of 32 bits": (
        {"positions": POSITIONS.astype("int32")},
        *(InvalidArgumentError, "positions", "has dtype int32, must be int64"),
    ),
    "a position beyond": (
        {"positions": POSITIONS + 1},
        *(InvalidArgumentError, "positions", "is 32 for row 3, must be from 0 to 31"),
    ),
    "a flag of 1": ({"inverse": 1}, ArgumentTypeError, "inverse", "is 1, must be True or False"),
    "a kernel": ({"kernel": "k4"}, InvalidArgumentError, "kernel", "is 'k4', must be one of"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls(nothing_is_written, refused, name):
    change, exception, argument, message = WRONG[name]
    arguments = inputs() | change
    out = numpy.zeros(getattr(arguments["x"], "shape", (1,)), "float32")
    with nothing_is_written(out), refused(exception, argument, message):
        tilewright.rope(**arguments, out=out)


@pytest.mark.parametrize(
    "change, argument, message",
    [
        ({"dims": 7}, "dims", "is 7, must be even"),
        ({"theta": 1}, "theta", "must be finite and above 1"),
        ({"yarn_factor": 0.5}, "yarn_factor", "must be finite and at least 1"),
        ({"yarn_factor": 4, "beta_slow": 0}, "beta_slow", "must be finite and above 0"),
        ({"max_positions": 0}, "max_positions", "is 0, must be at least 1"),
    ],
)
def test_wrong_tables(refused, change, argument, message):
    with refused(InvalidArgumentError, argument, message):
        tilewright.rope_tables(**({"max_positions": 8} | change))
