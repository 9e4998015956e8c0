"""A call's workspace is held until its results are delivered.

JAX orders its own work: before then it may give the memory to somebody else.
"""

import numpy
import pytest

import tilewright
from tilewright import _attention, _frameworks, _gemm_nvfp4, _native, _nvfp4


def attend():
    q = numpy.ones((1, 3, 2, 64), "float32")
    tilewright.attention(q, q, q)


def quantize():
    tilewright.quantize_nvfp4(numpy.ones((2, 64), "float32"), global_scale_kind="encode")


def multiply():
    codes, scales = numpy.ones((8, 32), "uint8"), numpy.full((8, 4), 0x38, "uint8")
    tilewright.gemm_nvfp4(numpy.ones((2, 64), "float16"), codes, scales)


@pytest.mark.parametrize(
    ("operation", "module", "call"),
    [
        (attend, _attention, "AttentionCall"),
        (quantize, _nvfp4, "QuantizeNvfp4Call"),
        (multiply, _gemm_nvfp4, "GemmNvfp4Call"),
    ],
)
def test_a_workspace_is_held_until_all_is_delivered(operation, module, call, monkeypatch):
    events = []

    class Workspace:
        def __del__(self):
            events.append("workspace released")

    class Call(getattr(_native, call)):
        def run(self, workspace, stream):
            assert isinstance(workspace, Workspace)
            super().run(None, stream)
            events.append("run")

    def deliver(_, array):
        events.append("delivered")
        return array

    monkeypatch.setattr(_native, call, Call)
    monkeypatch.setattr(module, "new_workspace", lambda *_: Workspace())
    monkeypatch.setattr(_frameworks.NumPy, "deliver", deliver)
    operation()
    assert events[0] == "run"
    assert set(events[1:-1]) == {"delivered"}
    assert events[-1] == "workspace released"
