import numpy
import pytest


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
