import contextlib

import numpy
import pytest

from tilewright import _frameworks


@pytest.fixture
def make_qkv():
    """make_qkv(batch, q_len, kv_len, heads, kv_heads, head_dim): random float32 arrays."""

    def make(batch=2, q_len=33, kv_len=47, heads=4, kv_heads=2, head_dim=64, seed=0):
        generator = numpy.random.default_rng(seed)
        return [
            generator.standard_normal((batch, length, count, head_dim), numpy.float32)
            for length, count in ((q_len, heads), (kv_len, kv_heads), (kv_len, kv_heads))
        ]

    return make


@pytest.fixture
def nothing_is_written(monkeypatch):
    """A context in which no array that a call on NumPy's arrays makes may change."""
    made = []

    def empty(self, shape, dtype=None):
        array = numpy.full(shape, 0xA5, "uint8").astype(dtype or self.like.dtype)
        made.append((array, array.copy()))
        return array

    @contextlib.contextmanager
    def check(*arrays):
        monkeypatch.setattr(_frameworks.NumPy, "empty", empty)
        made.extend((array, array.copy()) for array in arrays)
        yield
        assert all((array == before).all() for array, before in made)

    return check
