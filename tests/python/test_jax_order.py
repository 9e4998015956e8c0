"""JAX orders nothing between its own work and another's stream: the host waits in its place."""

from types import SimpleNamespace

from tilewright import _frameworks, _native


class Array:
    def __init__(self, events):
        self.events = events

    def block_until_ready(self):
        self.events.append("ready")
        return self

    def __dlpack__(self):
        self.events.append("exported")
        return "capsule"


def jax_on_a_gpu():
    framework = object.__new__(_frameworks.Jax)
    framework.stream, framework.device = 7, SimpleNamespace(local_hardware_id=2)
    return framework


def test_an_array_is_ready_before_a_kernel_gets_it():
    events = []
    assert jax_on_a_gpu().export(Array(events)) == "capsule"
    assert events == ["ready", "exported"]


def test_a_kernel_has_ended_before_jax_gets_its_result(monkeypatch):
    waited = []
    monkeypatch.setattr(_native, "synchronize", lambda *where: waited.append(where))
    out = Array([])
    assert jax_on_a_gpu().deliver(out) is out
    assert waited == [(2, 7)]
