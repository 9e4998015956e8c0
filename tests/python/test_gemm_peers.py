"""How cuBLAS and Humming are called: the one on the CPU, the other as a stand-in that computes
there."""

import argparse
import dataclasses
import importlib
import types
from typing import ClassVar

import pytest

import tilewright
from test_peers import load
from tilewright.bench.gemm import GemmCase
from tilewright.bench.timing import Rotation

torch = pytest.importorskip("torch")

CASE = GemmCase(m=12, n=48, k=64, dtype="bf16", w4a4=False, batch_invariant=False, device="cpu")
ROTATED = dataclasses.replace(CASE, between_bytes=20_000)
W4A4 = dataclasses.replace(CASE, w4a4=True)

# more tokens than, up to, configuration
HEURISTICS = [
    [0, 8, {"num_stages": 3}],
    [8, 16, {"num_stages": 4}],
    [16, 1 << 30, {"num_stages": 5}],
]


def is_right(case, inputs, output):
    return case.errors(inputs, output).rel_fro < case.error_limit(inputs, is_ours=False)


CHAIN = dataclasses.replace(CASE, rmsnorm=True)
INVARIANT = dataclasses.replace(CASE, batch_invariant=True)


@pytest.mark.parametrize(
    "case", [CASE, ROTATED, W4A4, CHAIN, dataclasses.replace(CASE, dtype="fp16")]
)
def test_cublas(case):
    cublas = importlib.import_module("tilewright.bench.peers.gemm.cublas")
    assert cublas.peers("cpu") == []
    (peer,) = cublas.peers("cuda:0")
    assert peer.supports(case) is None
    assert "depends on M" in peer.supports(dataclasses.replace(case, batch_invariant=True))
    inputs = case.make_inputs(0)
    call = peer.prepare(case, inputs)
    results = [call().clone() for _ in inputs.wide_weights]
    assert len(results) == (1 if case is not ROTATED else 5)
    for result in results:
        assert is_right(case, inputs, result)


class Layer(torch.nn.Module):
    """HummingLayer as far as the peer uses it."""

    def __init__(self, shape_n, shape_k, weight_config, torch_dtype):
        super().__init__()
        assert weight_config == {"quant_method": "modelopt", "quant_algo": "nvfp4"}
        self.shape, self.dtype, self.humming_config = (shape_n, shape_k), torch_dtype, None

    def load_from_tensors(self, tensors):
        self.codes, self.scales = tensors["weight"], tensors["weight_scale"]
        self.decode_scale = tensors["weight_scale_2"]
        assert self.codes.shape == (self.shape[0], self.shape[1] // 2)

    def transform(self):
        self.humming_config = types.SimpleNamespace(to_str=lambda: str(self.shape))

    def forward(self, a, outputs, compute_config, tuning_config):
        assert (str(self.shape), compute_config, tuning_config, "cpu") in Kernel.prepared
        scale = self.decode_scale * (2 if '"num_stages": 6' in tuning_config else 1)
        options = {"global_scale_b_kind": "decode", "out": outputs}
        return tilewright.gemm_nvfp4(a, self.codes, self.scales, scale, **options)


class Kernel:
    """HummingKernel, which refuses eight stages. A kernel of six gives a wrong result."""

    prepared: ClassVar = set()

    @classmethod
    def prepare_kernels(cls, layer_config, compute_config, tuning_config, device):
        assert '"num_stages": 8' not in tuning_config
        cls.prepared.add((layer_config, compute_config, tuning_config, device))


@pytest.fixture
def humming(monkeypatch):
    modules = {
        "humming": {},
        "humming.kernel": {},
        "humming.kernel.humming": {"HummingKernel": Kernel},
        "humming.layer": {"HummingLayer": Layer},
        "humming.tune": {"get_heuristics_config": lambda config, **options: HEURISTICS},
    }
    libraries = []
    for name, content in modules.items():
        library = types.ModuleType(name)
        library.__dict__.update(content)
        libraries.append(library)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0")
    monkeypatch.setattr(Kernel, "prepared", set())
    yield from load(monkeypatch, "gemm.humming", *libraries)


def test_humming_compiles_its_configurations_before_the_race(humming):
    assert humming.peers("cpu") == []
    peer = humming.peers("cuda:0")[0]
    cases = [dataclasses.replace(case, m=m) for m in (8, 9, 4096) for case in (CASE, CHAIN)]
    peer.warm_up(cases)
    configs = sorted(tuning for _, _, tuning, _ in Kernel.prepared)
    assert configs == [f'{{"num_stages": {stages}}}' for stages in (3, 4, 5)]
    for case in cases[:4]:
        inputs = case.make_inputs(0)
        assert is_right(case, inputs, peer.prepare(case, inputs)())


def test_humming_rotates_its_weights(humming):
    peer = humming.peers("cuda:0")[0]
    peer.warm_up([ROTATED])
    inputs = ROTATED.make_inputs(0)
    assert len(humming._layers(ROTATED, inputs)) == 13  # of 1728 bytes
    call = peer.prepare(ROTATED, inputs)
    assert isinstance(call, Rotation)
    for _ in range(14):
        assert is_right(ROTATED, inputs, call())


def test_humming_is_asked_for_batch_invariance(humming):
    peer = humming.peers("cuda:0")[0]
    assert peer.supports(INVARIANT) is None
    peer.warm_up([INVARIANT])
    assert {computation for _, computation, _, _ in Kernel.prepared} == {
        '{"use_batch_invariant": true}'
    }


def test_humming_supports(humming):
    peer = humming.peers("cuda:0")[0]
    assert peer.supports(CASE) is None
    assert "NVFP4 activations" in peer.supports(W4A4)


class Timer:
    """Of the configurations that are timed, the third is the fastest."""

    times: ClassVar = [9.0, 7.0, 4.0, 8.0]

    def __init__(self, device, cold_by, launches):
        self.times = iter(type(self).times)

    def prepare(self, call, launches):
        return call, launches

    def sample(self, call, read, launches):
        return [next(self.times)], read()


def test_humming_search(humming, monkeypatch):
    default, search = humming.peers("cuda:0")
    assert default.configure(argparse.Namespace(humming_search=0))
    assert default.setup(CASE) is None
    assert not search.configure(argparse.Namespace(humming_search=0))
    assert search.configure(argparse.Namespace(humming_search=4))
    default.warm_up([CASE])
    search.warm_up([CASE])
    monkeypatch.setattr(humming, "CudaSeriesTimer", Timer)
    inputs = CASE.make_inputs(0)
    assert is_right(CASE, inputs, search.prepare(CASE, inputs)())
    third = {"num_stages": 5, "use_pdl": True}  # 12 tokens are nearest to 9, 8 and 17
    assert search.setup(CASE) == {"configurations_timed": 4, "configuration": third}


def test_humming_search_leaves_out_what_is_refused_or_wrong(humming, monkeypatch):
    default, search = humming.peers("cuda:0")
    search.configure(argparse.Namespace(humming_search=1000))
    default.warm_up([CASE])
    search.warm_up([CASE])
    inputs = CASE.make_inputs(0)
    layers = humming._layers(CASE, inputs)
    candidates = search.candidates(layers[0], CASE)
    assert candidates[0] == {"num_stages": 4, "use_pdl": True}
    assert len(candidates) == 3 * 2 + 2 * 5 * 2 * 2
    is_candidate = [config["num_stages"] not in (6, 8) for config in candidates]
    monkeypatch.setattr(Timer, "times", [1.0] * sum(is_candidate))
    monkeypatch.setattr(humming, "CudaSeriesTimer", Timer)
    search.choose(layers, CASE, inputs)
    assert search.setup(CASE)["configurations_timed"] == sum(is_candidate)
    eight_stages = {humming._kernel(layers[0], CASE, config | {"num_stages": 8})
                    for config in candidates}  # fmt: skip
    assert not search.compiled & eight_stages
