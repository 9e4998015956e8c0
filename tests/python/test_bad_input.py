"""Every wrong argument: the exception's class, the argument it names, and nothing written."""

import pickle

import numpy
import pytest

import tilewright
from tilewright import ArgumentTypeError, InvalidArgumentError, UnsupportedError

POISON = 7.0


def misaligned(array):
    """A copy that starts two bytes past a multiple of its item size."""
    memory = numpy.empty(array.nbytes + 64, numpy.uint8)
    start = -memory.ctypes.data % 16 + 2
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def read_only(array):
    array.flags.writeable = False
    return array


def structured_field(array):
    """Floats 5 bytes apart, which strides in elements cannot say."""
    records = numpy.zeros(array.shape, [("x", numpy.float32), ("y", numpy.uint8)])
    return records["x"]


# name: (the wrong value from the right one, exception, a part of the message)
WRONG_TENSORS = {
    "a list": (lambda x: x.tolist(), ArgumentTypeError, "is a builtins.list"),
    "None": (lambda x: None, ArgumentTypeError, "is a builtins.NoneType"),
    "float64": (lambda x: x.astype(numpy.float64), InvalidArgumentError, "has dtype float64"),
    "int32": (lambda x: x.astype(numpy.int32), InvalidArgumentError, "has dtype int32"),
    "uint16": (lambda x: x.astype(numpy.uint16), InvalidArgumentError, "has dtype uint16"),
    "another byte order": (lambda x: x.astype(">f4"), InvalidArgumentError, "DLPack"),
    "odd strides": (structured_field, InvalidArgumentError, "DLPack"),
    "rank 3": (lambda x: x[0], InvalidArgumentError, "has rank 3, must have rank 4"),
    "rank 6": (lambda x: x[None, None], InvalidArgumentError, "has rank 6"),
    "no batch": (lambda x: x[:0], InvalidArgumentError, "has shape (0, "),
    "no rows": (lambda x: x[:, :0], InvalidArgumentError, "has shape (2, 0, "),
    "no head dim": (lambda x: x[..., :0], InvalidArgumentError, ", 0)"),
    "a strided head dim": (lambda x: x[..., ::2], InvalidArgumentError, "must be contiguous"),
    "a misaligned pointer": (misaligned, InvalidArgumentError, "must be aligned to 4 bytes"),
}


@pytest.mark.parametrize(
    ("argument", "name"),
    [
        (argument, name)
        for argument in ("q", "k", "v", "out")
        for name in WRONG_TENSORS
        if (argument, name) != ("out", "None")  # which asks for a new array
    ],
)
def test_wrong_tensor(make_qkv, refused, argument, name):
    change, exception, message = WRONG_TENSORS[name]
    q, k, v = make_qkv()
    tensors = {"q": q, "k": k, "v": v, "out": numpy.full_like(q, POISON)}
    right_out = tensors["out"]
    tensors[argument] = change(tensors[argument])
    with refused(exception, argument, message, right_out, tensors["out"]) as raised:
        tilewright.attention(**tensors)
    assert raised.value.code == "invalid_argument"


# name: (the arguments that change, exception, argument at fault, a part of the message)
WRONG_CALLS = {
    "head dims of q and k": (
        lambda t: {"k": t["k"][..., :32]},
        *(InvalidArgumentError, "k", "head_dim is 32, must equal q's 64"),
    ),
    "head dims of v and out": (
        lambda t: {"v": t["v"][..., :32]},
        *(InvalidArgumentError, "out", "head_dim is 64, must equal v's 32"),
    ),
    "batches": (
        lambda t: {"k": t["k"][:1]},
        *(InvalidArgumentError, "k", "batch is 1, must equal q's 2"),
    ),
    "heads that do not divide": (
        lambda t: {"q": t["q"][:, :, :3], "out": t["out"][:, :, :3]},
        *(InvalidArgumentError, "k", "has 2 heads, must divide q's 3"),
    ),
    "lengths of k and v": (
        lambda t: {"v": t["v"][:, :9]},
        *(InvalidArgumentError, "v", "seqlen is 9, must equal k's 47"),
    ),
    "another dtype": (
        lambda t: {"v": t["v"].astype(numpy.float16)},
        *(InvalidArgumentError, "v", "has dtype fp16, must be fp32"),
    ),
    "a short out": (
        lambda t: {"out": t["out"][:, :5]},
        *(InvalidArgumentError, "out", "seqlen is 5, must equal q's 33"),
    ),
    "a read-only out": (
        lambda t: {"out": read_only(t["out"])},
        *(InvalidArgumentError, "out", "is read-only"),
    ),
    "an out that overlaps itself": (
        lambda t: {
            "out": numpy.lib.stride_tricks.as_strided(t["out"], strides=(0, *t["out"].strides[1:]))
        },
        *(InvalidArgumentError, "out", "must not overlap"),
    ),
    "a negative scale": (
        lambda t: {"softmax_scale": -0.5},
        *(InvalidArgumentError, "softmax_scale", "is -0.5"),
    ),
    "a NaN scale": (
        lambda t: {"softmax_scale": numpy.nan},
        *(InvalidArgumentError, "softmax_scale", "is nan"),
    ),
    "a scale beyond fp32": (
        lambda t: {"softmax_scale": 1e300},
        *(InvalidArgumentError, "softmax_scale", "is inf"),
    ),
    "a scale of text": (
        lambda t: {"softmax_scale": "x"},
        *(ArgumentTypeError, "softmax_scale", "is 'x', must be a number"),
    ),
    "an unknown kernel": (
        lambda t: {"kernel": "k99"},
        *(InvalidArgumentError, "kernel", "is 'k99', must be one of auto, cpu, k1"),
    ),
    "a row that flash has not": (
        lambda t: {"kernel": "flash/99"},
        *(InvalidArgumentError, "kernel", "or a variant, flash/0 to flash/"),
    ),
    "a kernel by number": (lambda t: {"kernel": 4}, ArgumentTypeError, "kernel", "is 4"),
    "a causal of text": (lambda t: {"causal": "no"}, ArgumentTypeError, "causal", "is 'no'"),
    **{
        f"a {name} of 1": (lambda t, name=name: {name: 1}, ArgumentTypeError, name, "is 1, must")
        for name in ("return_lse", "normalize", "batch_invariant", "check_lengths")
    },
    "an lse beside row_max and row_sum": (
        lambda t: {"normalize": False, "return_lse": True},
        *(InvalidArgumentError, "return_lse", "is True, must be False without normalize"),
    ),
    "an un-normalised fp16 out": (
        lambda t: {name: t[name].astype(numpy.float16) for name in t} | {"normalize": False},
        *(InvalidArgumentError, "out", "has dtype fp16, must be fp32"),
    ),
    **{
        f"a {name} of parts of tokens": (
            lambda t, name=name: {name: 33.5},
            *(ArgumentTypeError, name, "is 33.5, must be an integer or None"),
        )
        for name in ("max_seqlen_q", "max_seqlen_k")
    },
    "a negative max_seqlen_q": (
        lambda t: {"max_seqlen_q": -1},
        *(InvalidArgumentError, "max_seqlen_q", "is -1, must be at least 0 and less than 2^63"),
    ),
    "a max_seqlen_k beyond 64 bits": (
        lambda t: {"max_seqlen_k": 1 << 63},
        *(InvalidArgumentError, "max_seqlen_k", "is 9223372036854775808, must be at least 0"),
    ),
    "a window of one side": (
        lambda t: {"window_size": 8},
        *(ArgumentTypeError, "window_size", "is 8, must be a pair of integers"),
    ),
    "a window of parts of keys": (
        lambda t: {"window_size": (1.5, 0)},
        *(ArgumentTypeError, "window_size", "is (1.5, 0)"),
    ),
    "a window beyond 64 bits": (
        lambda t: {"window_size": (1 << 63, 0)},
        *(InvalidArgumentError, "window_size", "less than 2^63, or -1: no limit"),
    ),
    "a negative window": (
        lambda t: {"window_size": (-2, 0)},
        *(InvalidArgumentError, "window_size", "is (-2, 0), each must be at least 0"),
    ),
    "a negative softcap": (
        lambda t: {"softcap": -1.0},
        *(InvalidArgumentError, "softcap", "is -1.0"),
    ),
    "a softcap of text": (lambda t: {"softcap": "x"}, ArgumentTypeError, "softcap", "is 'x'"),
    "sinks for other heads": (
        lambda t: {"sinks": numpy.zeros(9, numpy.float32)},
        *(InvalidArgumentError, "sinks", "heads is 9, must equal q's"),
    ),
    "sinks of another dtype": (
        lambda t: {"sinks": numpy.zeros(t["q"].shape[2], numpy.float16)},
        *(InvalidArgumentError, "sinks", "has dtype fp16, must be fp32"),
    ),
    "sinks of FP64": (
        lambda t: {"sinks": numpy.zeros(t["q"].shape[2])},
        *(InvalidArgumentError, "sinks", "has dtype float64, must be fp32"),
    ),
    "lengths of 64 bits": (
        lambda t: {"seqused_k": numpy.zeros(2, "int64")},
        *(InvalidArgumentError, "seqused_k", "has dtype int64, must be int32"),
    ),
    "a stream of text": (lambda t: {"stream": "x"}, ArgumentTypeError, "stream", "is 'x'"),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_wrong_call(make_qkv, refused, name):
    change, exception, argument, message = WRONG_CALLS[name]
    q, k, v = make_qkv()
    memory = numpy.full_like(q, POISON)
    arguments = {"q": q, "k": k, "v": v, "out": memory}
    with refused(exception, argument, message, memory):
        tilewright.attention(**(arguments | change(arguments)))


@pytest.mark.parametrize(
    "kernel",
    [k.name for k in tilewright.kernels() if k.operation == "attention" and k.device == "cuda"],
)
def test_cpu_tensor_to_a_gpu_kernel(make_qkv, kernel):
    q, k, v = make_qkv()
    out = numpy.full_like(q, POISON)
    with pytest.raises(InvalidArgumentError, match=f"q: is on cpu, kernel {kernel} takes"):
        tilewright.attention(q, k, v, out=out, kernel=kernel)
    assert (out == POISON).all()


def test_tensors_of_two_frameworks(make_qkv):
    torch = pytest.importorskip("torch")
    q, k, v = make_qkv()
    with pytest.raises(ArgumentTypeError, match="k: is an array of torch, must be one of numpy"):
        tilewright.attention(q, torch.from_numpy(k), v)


def test_jax_has_no_out_no_stream_and_no_tracers(make_qkv):
    jax = pytest.importorskip("jax")
    q, k, v = (jax.numpy.asarray(x) for x in make_qkv())
    with pytest.raises(InvalidArgumentError, match="out: is given, must be None: JAX"):
        tilewright.attention(q, k, v, out=q)
    with pytest.raises(InvalidArgumentError, match="stream: is 0, must be None: JAX"):
        tilewright.attention(q, k, v, stream=0)
    with pytest.raises(ArgumentTypeError, match="q: is traced by JAX"):
        jax.jit(tilewright.attention)(q, k, v)


def test_exceptions_are_built_in_ones_too():
    assert issubclass(InvalidArgumentError, ValueError)
    assert issubclass(ArgumentTypeError, TypeError)
    assert issubclass(UnsupportedError, NotImplementedError)
    for exception in (InvalidArgumentError, ArgumentTypeError, UnsupportedError):
        assert issubclass(exception, tilewright.Error)


def test_exceptions_survive_pickling(make_qkv):
    q, k, v = make_qkv()
    with pytest.raises(InvalidArgumentError) as raised:
        tilewright.attention(q, k, v, softmax_scale=-1)
    copy = pickle.loads(pickle.dumps(raised.value))
    assert (str(copy), copy.argument) == (str(raised.value), "softmax_scale")
