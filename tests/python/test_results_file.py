"""Races that end before their end, and go on in another process."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import pytest

import tilewright
from test_bench import SMALL, Scripted
from test_results import VALIDATOR
from tilewright.bench import __main__ as bench
from tilewright.bench.results_file import ResultsFile

CASES = 4
SWEEP = [*SMALL, "--seqlen=16,48", "--samples=1"]  # full and causal


class Counting(Scripted):
    """Right, and ends the process in the case of that number."""

    def __init__(self, name="counting", version="1", ends_in=None):
        super().__init__(name)
        self.version = version
        self.ends_in = ends_in
        self.cases = []

    def prepare(self, case, inputs):
        if len(self.cases) == self.ends_in:
            raise KeyboardInterrupt
        self.cases.append(case)
        qkv = (inputs.q, inputs.k, inputs.v)
        return lambda: tilewright.attention(*qkv, causal=case.causal)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "race.jsonl"


@pytest.fixture
def run(path, monkeypatch):
    def run(*options, peers):
        monkeypatch.setattr(bench, "load_peers", lambda *_: list(peers))
        assert bench.main([*SWEEP, f"--json={path}", *options]) == 0

    return run


def lines_of(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        VALIDATOR.validate(line)
    return lines


def keys_of(path):
    return [(l["case"]["causal"], l["case"]["q_len"], l["impl"], l["impl_version"])
            for l in lines_of(path)]  # fmt: skip


def test_a_race_that_was_cut_off_goes_on(run, path):
    with pytest.raises(KeyboardInterrupt):
        run(peers=[Counting("a"), Counting("b", ends_in=2)])
    assert len(keys_of(path)) == 4  # two cases, whole
    before = path.read_text()
    first, second = Counting("a"), Counting("b")
    run("--resume", peers=[first, second])
    assert len(first.cases) == len(second.cases) == CASES - 2
    assert path.read_text().startswith(before)
    assert len(set(keys_of(path))) == 2 * CASES
    run("--resume", peers=[peer := Counting("a")])
    assert peer.cases == [] and len(keys_of(path)) == 2 * CASES


def test_what_was_raced_in_another_version_is_raced_again_in_its_place(run, path):
    run(peers=[Counting("a"), Counting("b")])
    before = keys_of(path)
    run("--resume", peers=[Counting("a"), peer := Counting("b", "2")])
    assert len(peer.cases) == CASES
    assert keys_of(path) == [(*key, "2" if impl == "b" else "1") for *key, impl, _ in
                             ((c, q, i, i, v) for c, q, i, v in before)]  # fmt: skip


def test_what_was_not_checked_is_raced_again_where_it_is_to_be(run, path):
    run(peers=[Counting()])
    run("--resume", peers=[peer := Counting()])
    assert peer.cases == []
    run("--resume", "--check", peers=[peer])
    assert len(peer.cases) == CASES
    assert all(line["rel_fro_error"] is not None for line in lines_of(path))


def test_what_failed_is_raced_again_and_what_is_not_supported_is_not(run, path):
    def fail(inputs):
        raise MemoryError("too much")

    refused, failed = Scripted("refused", reason="not today"), Scripted("failed", call=fail)
    run(peers=[refused])
    before = path.read_text()
    run("--resume", peers=[refused])
    assert path.read_text() == before
    run("--append", peers=[failed])
    assert len(lines_of(path)) == 2 * CASES
    failed.prepare = Counting().prepare
    run("--resume", peers=[failed])
    assert [line["impl"] for line in lines_of(path)] == ["failed"] * CASES
    assert all(line["supported"] for line in lines_of(path))


def test_lines_of_other_cases_stay(run, path):
    run("--seqlen=32", peers=[Counting()])
    run("--resume", peers=[Counting()])
    assert [key[1] for key in keys_of(path)] == [32, 32, 16, 48, 16, 48]


def test_a_run_that_ends_before_its_first_case_loses_nothing(run, path):
    run(peers=[Counting()])
    before = path.read_text()
    with pytest.raises(KeyboardInterrupt):
        run(peers=[Counting(ends_in=0)])
    assert path.read_text() == before
    assert os.listdir(path.parent) == [path.name]


def test_a_line_that_is_cut_off_is_dropped(run, path):
    run(peers=[Counting()])
    whole = path.read_text()
    path.write_text(whole[:-20])
    run("--resume", peers=[peer := Counting()])
    assert len(peer.cases) == 1 and len(lines_of(path)) == CASES


@pytest.mark.parametrize("option", ["--append", "--resume"])
@pytest.mark.parametrize(
    ("content", "number"),
    [
        (b"hello", 1),
        (b'\n{"a": 1\n{}\n', 2),
        (b"{}\n[1]\n", 2),
        (b'{"\xff": 1}\n', 1),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"\n", 1),
    ],
)
def test_a_file_with_other_lines_is_refused(path, option, content, number):
    path.write_bytes(content)
    with pytest.raises(SystemExit, match=f"--json: .* line {number} is no JSON object, must be"):
        bench.main([*SMALL, "--peers=none", f"--json={path}", option])
    assert path.read_bytes() == content


def test_lines_are_split_where_they_end(path):
    """Not where text in them has a separator of its own."""
    path.write_text('{"operation": "o\u2028", "case": {}}\r\n')
    ResultsFile(path, append=True, resume=False).put([])
    assert [json.loads(line) for line in path.read_text().split("\n")[:-1]] == [
        {"operation": "o\u2028", "case": {}}
    ]


def test_links_permissions_and_pipes_stay(path, tmp_path):
    line = {"operation": "o", "case": {}}
    real = tmp_path / "real.jsonl"
    real.write_text("")
    real.chmod(0o640)
    path.symlink_to(real)
    ResultsFile(path, append=True, resume=False).put([line])
    assert path.is_symlink() and json.loads(real.read_text()) == line
    assert real.stat().st_mode & 0o777 == 0o640
    read_end, write_end = os.pipe()
    pipe = ResultsFile(pathlib.Path(f"/proc/self/fd/{write_end}"), append=True, resume=False)
    for _ in range(2):
        pipe.put([line])
        assert json.loads(os.read(read_end, 1000)) == line


def test_a_file_is_never_half_written(path, monkeypatch):
    file = ResultsFile(path, append=False, resume=False)
    file.put([{"operation": "o", "case": {}}])

    def fail(old, new):
        assert pathlib.Path(old).read_text().count("\n") == 2
        raise OSError("killed here")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="killed"):
        file.put([{"operation": "o", "case": {}}])
    assert path.read_text() == '{"operation": "o", "case": {}}\n'


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--resume"], "--resume needs --json"),
        (["--json=no/folder/x"], "no/folder is not a folder"),
    ],
)
def test_options_that_cannot_be_met_are_refused_before_the_race(options, message):
    with pytest.raises(SystemExit, match=message):
        bench.main([*SMALL, *options])


STALLING = f"""
import sys, time
sys.path += {[os.path.dirname(__file__)]!r}
from test_bench import SMALL, Scripted
from tilewright.bench import __main__ as bench

def wait_for_ever(inputs):
    time.sleep(100)

bench.load_peers = lambda *_: [Scripted(call=wait_for_ever)]
bench.main([*SMALL, "--stall-seconds=0.2"])
"""


def test_a_case_that_stalls_ends_the_process_and_says_where():
    command = [sys.executable, "-c", STALLING]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert "in wait_for_ever" in result.stderr and "in _prepare" in result.stderr


def test_cases_are_found_by_what_they_are():
    case = bench.attention.AttentionCase("fp32", 1, 4, 4, 2, 2, 8, 8, causal=True, device="cpu")
    windowed = dataclasses.replace(case, window=3)
    assert json.loads(json.dumps(windowed.to_json())) == windowed.to_json() != case.to_json()
