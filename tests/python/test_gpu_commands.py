"""tools/gpu, with programs in the place of Python and compute-sanitizer that note their calls."""

import collections
import fnmatch
import itertools
import json
import os
import pathlib
import subprocess
import sys

import pytest

import tilewright
from tilewright.bench import __main__ as bench
from tilewright.bench import peers

TOOL = pathlib.Path(__file__).parents[2] / "tools/gpu"
NOTE = f"""\
#!{sys.executable}
import json, os, sys
with open(os.environ["LOG"], "a") as log:
    print(json.dumps(sys.argv[1:]), file=log)
failing = os.environ.get("FAIL_ON")
if failing and any(failing in argument for argument in sys.argv if ".py" not in argument):
    sys.exit(int(os.environ["STATUS"]))
"""

# Files and the number of their cases.
RACES = {
    "race": {"attention-ladder": 36},
    "production": {"attention-flash": 36, "small-flash": 8, "odd-flash": 12},
    "configs": {
        "configs-flash": 72 + 24,
        "configs-flash-fp16": 18,
        "configs-flash-packed": 12,
    },
    "features": {"varlen-flash": 12, "fp16-flash": 18, "gqa-flash": 12, "dims-flash": 18},
    "serving": {
        "chunks-flash": 6,
        "decode-flash": 4,
        "short-flash": 8,
        "window-flash": 8,
        "sinks-flash": 4,
        "softcap-flash": 8,
    },
    "decode": {"decode-sweep": 24},
    "decode-configs": {"configs-decode": 16 + 12, "configs-decode-e4m3": 16},
    "decode-pages": {"decode-pages": 24},
    "decode-features": {"decode-ragged": 8, "decode-e4m3": 20, "decode-invariant": 20},
    "decode-prefill": {"decode-chunks": 5, "decode-chunks-e4m3": 6, "decode-mixed": 6},
    "fp8": {"attention-fp8": 36, "rotate_quantize": 6},
    "fp8-accuracy": {"accuracy-fp8": 2 * 4 * 8},
    "dsv4": {"dsv4-decode": 16 + 4 + 1 + 3 + 6 + 1 + 9 + 12 + 4},
    "gemm": {"gemm-nvfp4": 16 + 20 + 12 + 28, "gemm-alone": 28, "gemm-host": 8, "gemm-graph": 28},
    "gemm-serving": {"chain-nvfp4": 16, "invariant-nvfp4": 24},
    "gemm-steps": {"gemm-steps": 3},
    "gemm-configs": {"configs-nvfp4": 76},
}


@pytest.fixture
def run(tmp_path):
    """run(*arguments, **variables): (the finished process, the calls that it made)."""

    def run(*arguments, **variables):
        log = tmp_path / "log"
        log.write_text("")
        for name in ("python", "compute-sanitizer"):
            program = tmp_path / name
            program.write_text(NOTE)
            program.chmod(0o755)
        environment = os.environ | {"LOG": str(log), "OUT": str(tmp_path / "out"), "BUILD": "build"}
        environment["PYTHON"] = str(tmp_path / "python")
        environment["PATH"] = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        process = subprocess.run(
            [TOOL, *arguments],
            env=environment | variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return process, [json.loads(line) for line in log.read_text().splitlines()]

    return run


def races_of(calls):
    """The arguments of each race, all of which are in one call."""
    ((module, name, *arguments),) = calls
    assert (module, name) == ("-m", "tilewright.bench")
    groups = itertools.groupby(arguments, key=lambda word: word == "--then")
    return [bench.parse_arguments(list(group)) for is_between, group in groups if not is_between]


@pytest.mark.parametrize("what", RACES)
def test_races(run, what, monkeypatch):
    monkeypatch.setattr("tilewright.bench.timing.l2_cache_bytes", lambda device: 50 << 20)
    monkeypatch.setitem(sys.modules, "torch", sys.modules.get("torch"))  # as if it were there
    process, calls = run(what, "--samples=7")
    assert process.returncode == 0, process.stderr
    cases = collections.defaultdict(list)
    for args in races_of(calls):
        assert args.check and args.stall_seconds and (args.device, args.samples) == ("cuda", 7)
        assert args.append == (args.json.stem in cases)
        known = peers.module_names(args.operation)
        assert args.peers == "none" or set(args.peers.split(",")) <= set(known)
        operation = bench.OPERATIONS[args.operation]
        cases[args.json.stem] += operation.cases(args, "cuda:0")
    assert {file: len(set(of_file)) for file, of_file in cases.items()} == RACES[what]
    assert all(len(set(of_file)) == len(of_file) for of_file in cases.values())


def test_kv_rows_to_and_fro(run, tmp_path):
    """The command line's lines of all its runs come together; two races follow."""
    program = tmp_path / "build/cli/tilewright"
    program.parent.mkdir(parents=True)
    program.write_text(f"""\
#!{sys.executable}
import sys
words = sys.argv[1:]
with open(words[words.index("--json") + 1], "w") as file:
    print(*words[:words.index("--json")], file=file)
""")
    program.chmod(0o755)
    process, calls = run("kv-rows", "--samples=7", BUILD=str(tmp_path / "build"))
    assert process.returncode == 0, process.stderr
    lines = (tmp_path / "out/quantize_kv_rows.jsonl").read_text().splitlines()
    assert len(set(lines)) == len(lines) == 12
    assert all(line.startswith("kv-rows --device cuda --check") for line in lines)
    races = {args.json.stem: args for args in races_of(calls)}
    assert {name: args.conversion for name, args in races.items()} == {
        "dequantize_kv_rows": "dequantize_kv_rows",
        "rope": "rope",
    }
    cases = [case for args in races.values() for case in bench.convert.cases(args, "cuda:0")]
    assert len(set(cases)) == 12 + 12
    assert all(args.check and args.samples == 7 for args in races.values())


def test_accuracy_is_of_every_promotion_and_form(run):
    (args,) = races_of(run("fp8-accuracy")[1])
    cases = list(bench.fp8.cases(args, "cuda:0"))
    assert {case.kv_len for case in cases} == {1024 << i for i in range(8)}
    forms = {(case.outliers, case.rotated, case.descale) for case in cases}
    assert len(forms) == 8 and all(case.checked_rows for case in cases)
    ours = [row.name for row in tilewright.kernels() if row.operation == "attention_fp8"]
    patterns = args.kernels.split(",")
    chosen = {name for name in ours for pattern in patterns if fnmatch.fnmatch(name, pattern)}
    assert chosen == {"k7", "k8_never", "k8_8", "k8_4", "k8_2", "k8", "flash_fp8"}


def test_cases_of_servers(run, monkeypatch):
    _, calls = run("serving")
    cases = [case for args in races_of(calls) for case in bench.attention.cases(args, "cuda:0")]
    assert {(c.q_len, c.kv_len) for c in cases if c.q_len not in (1, c.kv_len)} == {
        (128, 8192), (128, 65536), (512, 8192), (512, 65536), (2048, 8192), (2048, 65536),
    }  # fmt: skip
    assert all(c.causal == (c.q_len > 1) for c in cases if c.q_len < c.kv_len)
    assert {c.window for c in cases} == {None, 127, 1023, 4095}
    assert {len(c.lengths) for c in cases} == {0, 256, 512}
    for case in cases:
        assert case.q_len * case.batch <= 32768 or case.lengths
        keys = case.kv_len * case.kv_heads * case.head_dim * (1 if case.lengths else case.batch)
        assert keys <= 1 << 30


@pytest.mark.parametrize(("status", "says"), [(3, "exit status 3"), (124, "ended after 300 s")])
def test_a_race_that_fails_shows_in_the_exit_status(run, status, says):
    process, calls = run("production", FAIL_ON="small-flash", STATUS=str(status))
    assert len(calls) == 1
    assert process.returncode == 1
    assert process.stderr == f"FAILED production: {says}\n"


@pytest.mark.parametrize(
    ("arguments", "tools"),
    [
        ([], ["memcheck", "initcheck", "synccheck", "racecheck"]),
        (["initcheck"], ["initcheck"]),
        (["racecheck", "memcheck", "--gtest_repeat=2"], ["racecheck", "memcheck"]),
    ],
)
def test_sanitizers(run, arguments, tools):
    process, calls = run("sanitize", *arguments)
    assert process.returncode == 0, process.stderr
    shards = collections.Counter(call[call.index("--tool") + 1] for call in calls)
    assert shards == dict.fromkeys(tools, 3)
    for call in calls:
        tool = call[call.index("--tool") + 1]
        (tests,) = (option for option in call if option.startswith("--gtest_filter="))
        assert ("AddsUpPartsOfTiles" in tests) == (tool != "racecheck")
        assert "SmallProblems" in tests
        assert call[-1] == (arguments[-1] if "--gtest_repeat=2" in arguments else tests)


def test_a_sanitizer_that_finds_something_does_not_stop_the_others(run):
    process, calls = run("sanitize", FAIL_ON="memcheck", STATUS="1")
    assert len(calls) == 12
    assert process.returncode == 1
    assert process.stderr == "".join(f"FAILED memcheck-{shard}\n" for shard in range(3))


def test_tests_run_side_by_side(run, tmp_path):
    programs = tmp_path / "build"
    for name in ("tests/gpu_tests", "cli/tilewright"):
        (programs / name).parent.mkdir(parents=True)
        (programs / name).write_text(NOTE)
        (programs / name).chmod(0o755)
    process, calls = run("test", BUILD=str(programs), FAIL_ON="attention", STATUS="3")
    assert process.stderr == "FAILED tilewright-attention\n"
    filters = collections.Counter(call[-1] for call in calls if "--gtest_brief=1" in call)
    gemms = "*Gemm*:*Nvfp4*:*Activations*"
    assert filters == {f"--gtest_filter=-{gemms}": 3, f"--gtest_filter={gemms}": 3}
    (files,) = (
        [name for name in call if name.endswith(".py")] for call in calls if "pytest" in call
    )
    assert all((TOOL.parents[1] / name).exists() for name in files)
    assert "tests/python/test_gpu.py" in files


def test_help_names_every_command(run):
    process, _ = run()
    for command in (*RACES, "test", "sanitize", "quantize", "kv-rows", "profile", "--resume"):
        assert command in process.stdout
    assert "set -euo" not in process.stdout
