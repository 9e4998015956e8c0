"""The race on the CPU, by this library alone and beside a peer made up here."""

import json
import re
import sys
import time

import pytest

from test_results import MEASURED, UNSUPPORTED, VALIDATOR
from tilewright.bench import __main__ as bench
from tilewright.bench import peers
from tilewright.bench.attention import AttentionCase
from tilewright.bench.machine import CpuMachine
from tilewright.bench.race import Rules, race, to_line
from tilewright.bench.report import print_case
from tilewright.bench.timing import CpuTimer, Timing

SMALL = ["attention", "--device=cpu", "--tokens=96", "--seqlen=48", "--hidden=128", "--headdim=64"]
SMALL += ["--gap=0"]
CASE = AttentionCase("fp32", 1, 16, 16, 2, 2, 64, 64, causal=True, device="cpu")
RULES = Rules(samples=4, gap_s=0, max_seconds=5, check=True, seed=0)


class Scripted(peers.Peer):
    """A peer that does as it is told."""

    version = "1"

    def __init__(self, name="scripted", reason=None, call=None):
        self.name = name
        self.reason = reason
        self.call = call

    def supports(self, case):
        return self.reason

    def prepare(self, case, inputs):
        return lambda: self.call(inputs)


def run_one(peer, rules=RULES):
    (entrant,) = race([peer], CASE, CpuTimer(), CpuMachine(), rules)
    line = to_line(entrant, CASE, "2026-01-31T12:34:56Z abc", CpuTimer(), CpuMachine())
    VALIDATOR.validate(line)
    return entrant, line


def test_lines_of_a_small_sweep(tmp_path, capsys):
    path = tmp_path / "race.jsonl"
    arguments = [*SMALL, "--peers", "none", "--samples", "3", "--check", "--json", str(path)]
    assert bench.main(arguments) == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["case"]["causal"] for line in lines] == [False, True]
    for line in lines:
        VALIDATOR.validate(line)
        assert line["impl"] == "tilewright/cpu"
        assert line["samples"] == 3
        assert line["p10_us"] <= line["median_us"] <= line["p90_us"]
        assert line["rel_fro_error"] < 1e-5
        assert (line["case"]["batch"], line["case"]["heads"]) == (2, 2)
    full = lines[0]
    assert full["tflops"] == pytest.approx(4 * 2 * 2 * 48 * 48 * 64 / full["median_us"] / 1e6, 0.1)
    assert len({line["run"] for line in lines}) == 1
    assert re.search(r"full 2x48.*tilewright/cpu.*causal 2x48", capsys.readouterr().out, re.DOTALL)


def test_a_repeated_case_has_the_same_inputs():
    first, second, other = (CASE.make_inputs(seed) for seed in (0, 0, 1))
    assert (first.q == second.q).all()
    assert not (first.q == other.q).any()


def test_unsupported_is_recorded_with_its_reason():
    entrant, line = run_one(Scripted(reason="not today"))
    assert (line["supported"], line["reason"]) == (False, "not today")
    assert not entrant.failed


def test_a_peer_that_raises_does_not_stop_the_race():
    def call(inputs):
        raise MemoryError("too much")

    entrant, line = run_one(Scripted(call=call))
    assert line["reason"] == "MemoryError: too much"
    assert not entrant.failed
    ours, _ = run_one(Scripted("tilewright/x", call=call))
    assert ours.failed


def test_a_wrong_result_fails(capsys):
    entrant, line = run_one(Scripted(call=lambda inputs: inputs.q))
    assert entrant.failed
    assert line["rel_fro_error"] > 0.1
    assert bench.report_failures([entrant], CASE) == 1
    assert "reproduce: python -m tilewright.bench attention --device cpu" in capsys.readouterr().err


def test_samples_are_interleaved_and_the_first_changes():
    order = []
    names = ("a", "b", "c")

    def call(name):
        return lambda inputs: order.append(name)

    rules = Rules(samples=3, gap_s=0, max_seconds=5, check=False, seed=0)
    race([Scripted(n, call=call(n)) for n in names], CASE, CpuTimer(), CpuMachine(), rules)
    assert "".join(order).endswith("c" + "abc" + "bca" + "cab")


@pytest.mark.parametrize("has_rich", [False, True])
def test_the_printed_table(monkeypatch, capsys, has_rich):
    if has_rich:
        pytest.importorskip("rich")
    else:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    ran = MEASURED | {"tflops": 300.0, "rel_fro_error": 0.0021}
    peer = MEASURED | {"impl": "fa3", "tflops": 400.0, "median_us": 12.34}
    print_case("a title", [ran, peer, UNSUPPORTED | {"impl": "cudnn"}])
    printed = capsys.readouterr().out
    for text in ("a title", "0.750", "2.1e-03", "12.3", "cudnn: q: has head_dim 96"):
        assert text in printed


def test_a_slow_implementation_takes_fewer_samples():
    rules = Rules(samples=20, gap_s=0, max_seconds=0.01, check=False, seed=0)
    _, line = run_one(Scripted(call=lambda inputs: time.sleep(0.02)), rules)
    assert line["samples"] == 3


def test_percentiles():
    timing = Timing(samples_us=[float(x) for x in range(11)])
    assert (timing.median_us, *timing.p10_p90_us) == (5, 1, 9)
    assert Timing(samples_us=[3.0]).p10_p90_us == (3.0, 3.0)


def test_every_peer_loads_or_says_what_is_missing():
    assert {"cudnn", "fa3", "torch_sdpa"} <= set(peers.module_names())
    for name in peers.module_names():
        try:
            loaded = peers.load(name, "cpu")
        except ImportError:
            continue
        assert all(isinstance(peer, peers.Peer) for peer in loaded)


def test_pytorch_races_on_the_cpu(tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "race.jsonl"
    arguments = [*SMALL, "--peers", "torch_sdpa", "--samples", "2", "--check", "--json", str(path)]
    assert bench.main(arguments) == 0
    impls = [json.loads(line)["impl"] for line in path.read_text().splitlines()]
    assert impls == ["tilewright/cpu", "torch_sdpa"] * 2


@pytest.mark.parametrize("option", ["--kernels", "--peers"])
def test_unknown_names_are_refused(option):
    with pytest.raises(SystemExit, match=f"{option}: nobody is not one of"):
        bench.main([*SMALL, option, "nobody"])
