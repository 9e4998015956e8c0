"""append_kv() on the CPU, beside the same in NumPy."""

import numpy
import pytest

import tilewright
from tilewright import ArgumentTypeError, InvalidArgumentError

ml_dtypes = pytest.importorskip("ml_dtypes")

PAGES, PAGE_SIZE, HEADS, DIM = 12, 8, 2, 16
SLOTS = numpy.array([3, -1, 95, 40, 8], "int64")
LENGTHS = numpy.array([5, 14], "int32")
STARTS = numpy.array([0, 3, 5], "int32")
TABLE = numpy.array([[7, 2, 9], [0, 11, 4]], "int32")
# The page and place of the packed rows by LENGTHS, STARTS and TABLE.
PLACES = [(7, 5), (7, 6), (7, 7), (11, 6), (11, 7)]


def normal(*shape, dtype="float32", seed=0):
    return numpy.random.default_rng(seed).standard_normal(shape, "float32").astype(dtype)


def rows(dtype="float32"):
    """k and v of five tokens."""
    return {
        "k": normal(5, HEADS, DIM, dtype=dtype),
        "v": normal(5, HEADS, DIM // 2, dtype=dtype, seed=1),
    }


def caches(dtype="float32"):
    return {
        "k_cache": numpy.zeros((PAGES, PAGE_SIZE, HEADS, DIM), dtype),
        "v_cache": numpy.zeros((PAGES, PAGE_SIZE, HEADS, DIM // 2), dtype),
    }


def tables(count=32, pairs=4):
    angles = numpy.arange(count)[:, None] / 10 ** numpy.arange(pairs)
    return {
        "rotary_cos": numpy.cos(angles).astype("float32"),
        "rotary_sin": numpy.sin(angles).astype("float32"),
    }


def rotated(x, positions, rotary_cos, rotary_sin, interleaved):
    """x (tokens, heads, dim), its first dims rotated."""
    cos, sin = (table[positions][:, None] for table in (rotary_cos, rotary_sin))
    pairs = cos.shape[2]
    first = slice(0, 2 * pairs, 2) if interleaved else slice(0, pairs)
    second = slice(1, 2 * pairs, 2) if interleaved else slice(pairs, 2 * pairs)
    out = x.astype("float32")
    x1, x2 = out[..., first].copy(), out[..., second].copy()
    out[..., first] = x1 * cos - x2 * sin
    out[..., second] = x2 * cos + x1 * sin
    return out.astype(x.dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_by_slots(dtype):
    inputs, cache = rows(dtype), caches(dtype)
    assert tilewright.append_kv(**inputs, **cache, slot_mapping=SLOTS) is None
    expected = caches(dtype)
    for token, slot in enumerate(SLOTS):
        if slot >= 0:
            place = divmod(slot, PAGE_SIZE)
            expected["k_cache"][place] = inputs["k"][token]
            expected["v_cache"][place] = inputs["v"][token]
    assert all((cache[name] == expected[name]).all() for name in cache)


def test_by_lengths_in_pages():
    inputs, cache = rows(), caches()
    placing = {"cache_seqlens": LENGTHS, "cu_seqlens_new": STARTS, "block_table": TABLE}
    tilewright.append_kv(**inputs, **cache, **placing)
    expected = caches()
    for token, place in enumerate(PLACES):
        expected["k_cache"][place] = inputs["k"][token]
        expected["v_cache"][place] = inputs["v"][token]
    assert all((cache[name] == expected[name]).all() for name in cache)


@pytest.mark.parametrize("has_entries", [False, True])
def test_by_lengths_in_a_contiguous_cache(has_entries):
    k, v = normal(2, 3, HEADS, DIM), normal(2, 3, HEADS, DIM, seed=1)
    entries = numpy.array([4, 1], "int32") if has_entries else None
    both = numpy.zeros((6 if has_entries else 2, HEADS, 2, 20, DIM), "float32")
    k_cache, v_cache = (both[:, :, i].transpose(0, 2, 1, 3) for i in range(2))  # heads first
    tilewright.append_kv(k, v, k_cache, v_cache, cache_seqlens=LENGTHS, cache_batch_idx=entries)
    expected = numpy.zeros_like(both)
    for b, length in enumerate(LENGTHS):
        entry = entries[b] if has_entries else b
        expected[entry, :, 0, length : length + 3] = k[b].transpose(1, 0, 2)
        expected[entry, :, 1, length : length + 3] = v[b].transpose(1, 0, 2)
    assert (both == expected).all()


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rotation(interleaved, dtype):
    inputs, cache, rotation = rows(dtype), caches(dtype), tables()
    q = normal(5, 6, DIM, dtype=dtype, seed=2)
    placing = {"cache_seqlens": LENGTHS, "cu_seqlens_new": STARTS, "block_table": TABLE}
    options = rotation | {"interleaved": interleaved}
    q_out = tilewright.append_kv(**inputs, **cache, **placing, **options, q=q)
    positions = numpy.array([5, 6, 7, 14, 15])
    assert (q_out == rotated(q, positions, **options)).all()
    keys = rotated(inputs["k"], positions, **options)
    for token, place in enumerate(PLACES):
        assert (cache["k_cache"][place] == keys[token]).all()
        assert (cache["v_cache"][place] == inputs["v"][token]).all()


def test_rotation_at_given_positions():
    inputs, cache, rotation = rows(), caches(), tables()
    positions = numpy.array([31, 0, 7, 8, 1], "int64")
    q = normal(5, 3, DIM, seed=2)
    out = numpy.zeros((5, 2, 3, DIM), "float32")
    q_out = tilewright.append_kv(
        **inputs, **cache, **rotation, slot_mapping=SLOTS, positions=positions, q=q, q_out=out[:, 1]
    )
    assert numpy.shares_memory(q_out, out) and (out[:, 0] == 0).all()
    assert (out[:, 1] == rotated(q, positions, **rotation, interleaved=False)).all()
    keys = rotated(inputs["k"], positions, **rotation, interleaved=False)
    assert (cache["k_cache"][11, 7] == keys[2]).all()


@pytest.mark.parametrize("dtype", ["uint8", "float8_e4m3fn"])
@pytest.mark.parametrize("kind", ["tensor", "sequence"])
def test_given_descales(dtype, kind):
    inputs, cache = rows("bfloat16"), caches(dtype)
    descales = numpy.array([[0.5, 0.25], [2, 0.125]], "float32")
    k_descale = descales if kind == "sequence" else descales[0, :1]
    placing = {"cache_seqlens": LENGTHS, "cu_seqlens_new": STARTS, "block_table": TABLE}
    tilewright.append_kv(
        **inputs, **cache, **placing, k_descale=k_descale, v_descale=numpy.ones(1, "float32")
    )
    for token, place in enumerate(PLACES):
        by_head = descales[int(token >= 3)] if kind == "sequence" else descales[0, :1]
        keys = inputs["k"][token].astype("float32") / by_head[:, None]
        stored = cache["k_cache"][place].view(ml_dtypes.float8_e4m3fn)
        assert (stored == keys.astype(ml_dtypes.float8_e4m3fn)).all()


def test_computed_descales():
    inputs, cache = rows("float16"), caches("uint8")
    inputs["v"][2, 1] = 0
    descales = {
        name: numpy.full((PAGES, PAGE_SIZE, HEADS), 9, "float32")
        for name in ("k_descale", "v_descale")
    }
    tilewright.append_kv(**inputs, **cache, **descales, slot_mapping=SLOTS)
    amax = abs(inputs["k"].astype("float32")).max(axis=2)
    for token, slot in enumerate(SLOTS):
        if slot >= 0:
            place = divmod(slot, PAGE_SIZE)
            assert (descales["k_descale"][place] == amax[token] / numpy.float32(448)).all()
            values = cache["k_cache"][place].view(ml_dtypes.float8_e4m3fn).astype("float32")
            values *= descales["k_descale"][place][:, None]
            numpy.testing.assert_allclose(values, inputs["k"][token], rtol=0.0626, atol=1e-2)
    assert descales["v_descale"][11, 7, 1] == 1
    assert (descales["k_descale"] == 9).sum() == (PAGES * PAGE_SIZE - 4) * HEADS


def test_pytorch_on_the_cpu():
    torch = pytest.importorskip("torch")
    inputs, cache = rows(), caches()
    ours = {name: torch.from_numpy(array) for name, array in caches().items()}
    tilewright.append_kv(**inputs, **cache, slot_mapping=SLOTS)
    theirs = {name: torch.from_numpy(array) for name, array in inputs.items()}
    tilewright.append_kv(**theirs, **ours, slot_mapping=torch.from_numpy(SLOTS))
    assert all((ours[name].numpy() == cache[name]).all() for name in cache)


def test_jax_is_refused():
    jax = pytest.importorskip("jax")
    with pytest.raises(InvalidArgumentError, match="k_cache: is an array of JAX"):
        tilewright.append_kv(*(jax.numpy.ones((1, 1, 1, 8)) for _ in range(4)))


# name: (the arguments that change, exception, argument at fault, a part of the message)
WRONG = {
    "a list": ({"k": [1.0]}, ArgumentTypeError, "k", "is a builtins.list"),
    "no v": ({"v": None}, ArgumentTypeError, "v", "is a builtins.NoneType"),
    "a q of lists": ({"q": [1.0]} | tables(), ArgumentTypeError, "q", "is a builtins.list"),
    "integers": ({"k": numpy.ones((5, 2, 16), "int32")}, InvalidArgumentError, "k", "int32"),
    "another v": ({"v": normal(4, 2, 8)}, InvalidArgumentError, "v", "tokens is 4, must equal k's"),
    "no way": ({"slot_mapping": None}, InvalidArgumentError, "slot_mapping", "is absent"),
    "slots of 32 bits": (
        {"slot_mapping": SLOTS.astype("int32")},
        *(InvalidArgumentError, "slot_mapping", "has dtype int32, must be int64"),
    ),
    "two ways": (
        {"cache_seqlens": LENGTHS},
        *(InvalidArgumentError, "cache_seqlens", "must be absent where slot_mapping is given"),
    ),
    "a slot beyond": (
        {"slot_mapping": numpy.array([0, 1, 2, 3, 96])},
        *(InvalidArgumentError, "slot_mapping", "is 96 for row 4, must be -1 or less than 96"),
    ),
    "a slot twice": (
        {"slot_mapping": numpy.array([0, 1, 2, 0, 4])},
        *(InvalidArgumentError, "slot_mapping", "gives slot 0 to rows 0 and 3"),
    ),
    "no positions": (tables(), InvalidArgumentError, "positions", "is absent, must be given"),
    "a position beyond": (
        tables() | {"positions": numpy.array([0, 1, 2, 32, 4])},
        *(InvalidArgumentError, "positions", "is 32 for row 3, must be from 0 to 31"),
    ),
    "a q alone": ({"q": normal(5, 2, 16)}, InvalidArgumentError, "q", "must be absent where"),
    "a q_out alone": (
        tables() | {"positions": SLOTS, "q_out": normal(5, 2, 16)},
        *(InvalidArgumentError, "q_out", "is given, must be absent where q is absent"),
    ),
    "a flag of 1": ({"interleaved": 1}, ArgumentTypeError, "interleaved", "is 1, must be True"),
    "values of 1": ({"check_values": 1}, ArgumentTypeError, "check_values", "is 1, must be True"),
    "a descale of FP32": (
        {"k_descale": numpy.ones(1, "float32")},
        *(InvalidArgumentError, "k_descale", "must be absent where k_cache is not e4m3"),
    ),
    "no descale": (
        caches("uint8"),
        *(InvalidArgumentError, "k_descale", "is absent, must be given where k_cache is e4m3"),
    ),
    "a computed descale of other pages": (
        caches("uint8") | {"k_descale": numpy.ones((3, PAGE_SIZE, HEADS), "float32")},
        *(InvalidArgumentError, "k_descale", "pages is 3, must equal k_cache's 12"),
    ),
    "an FP64 descale": (
        caches("uint8") | {"k_descale": numpy.ones((PAGES, PAGE_SIZE, HEADS))},
        *(InvalidArgumentError, "k_descale", "has dtype float64, must be fp32"),
    ),
    "a kernel": ({"kernel": "k4"}, InvalidArgumentError, "kernel", "is 'k4', must be one of"),
    "a GPU's kernel": (
        {"kernel": "hopper"},
        *(InvalidArgumentError, "k", "is on cpu, kernel hopper takes"),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls(nothing_is_written, refused, name):
    change, exception, argument, message = WRONG[name]
    arguments = rows() | caches() | {"slot_mapping": SLOTS} | change
    written = [arguments["k_cache"], arguments["v_cache"]]
    with nothing_is_written(*written), refused(exception, argument, message):
        tilewright.append_kv(**arguments)


def test_a_read_only_cache(refused):
    arguments = rows() | caches()
    arguments["v_cache"].flags.writeable = False
    with refused(InvalidArgumentError, "v_cache", "is read-only", arguments["k_cache"]):
        tilewright.append_kv(**arguments, slot_mapping=SLOTS)
