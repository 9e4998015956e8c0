"""tilewright dsv4-attention: exit status, messages, checks, results files."""

import shlex

import pytest
from results_file import read_lines

PASS, _, USAGE, UNSUPPORTED = range(4)
SMALL = ["dsv4-attention", "--heads", "4", "--gap", "0", "--samples", "5", "--context", "40"]
SMALL += ["--batch", "2"]
WINDOW, COMPRESSED = ["--window", "9"], ["--compressed", "13"]
KEYS = [*WINDOW, *COMPRESSED]
RANGE = ["--compressed-keys", "range"]


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize(
    "case",
    [
        KEYS,
        [*KEYS, "--seqlen", "3", "--sinks"],
        [*KEYS, *RANGE, "--seqlen", "2"],
        [*COMPRESSED, "--window", "0", "--compressed-rows", "e2m1", "--compressed-page-size", "2"],
        [*WINDOW, "--compressed", "0", "--inverse-rope", "--window-rows", "bf16"],
        [*KEYS, "--window-rows", "e4m3", "--window-page-size", "5", "--scale", "0.1"],
    ],
)
def test_check_passes_on_the_cpu(cli, dtype, case):
    result = cli(*SMALL, "--dtype", dtype, "--check", *case)
    assert result.returncode == PASS, result.stdout + result.stderr
    header, row = result.stdout.splitlines()
    assert header.split()[:2] == ["kernel", "case"] and row.split()[0] == "cpu"
    assert "ok: relative" in row


def test_results_file(cli, tmp_path):
    path = tmp_path / "dsv4.jsonl"
    assert cli(*SMALL, *KEYS, "--dtype", "fp32", "--check", "--json", path).returncode == PASS
    (line,) = read_lines(path)
    assert line["operation"] == "dsv4_attention" and line["impl"] == "tilewright/cpu"
    assert line["case"] == {
        "dtype": "fp32",
        "batch": 2,
        "q_len": 1,
        "heads": 4,
        "window": 9,
        "window_rows": "e4m3_bf16",
        "window_page_size": 64,
        "compressed": 13,
        "compressed_rows": "e4m3_bf16",
        "compressed_page_size": 64,
        "compressed_keys": "list",
        "context": 40,
        "sinks": False,
        "inverse_rope": False,
    }
    assert 0 < line["rel_fro_error"] < 1e-5
    size = 2 * (22 * 584 + 2 * 4 * 512 * 4)
    assert line["gbps"] == pytest.approx(size / line["median_us"] / 1e3, rel=1e-4)
    assert line["tflops"] == pytest.approx(2 * 4 * 4 * 512 * 22 / line["median_us"] / 1e6, rel=1e-4)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--window", "0", "--compressed", "0"], "--window: is 0, must be at least 1 where"),
        (["--window", "-1"], "--window: is -1, must be a whole number from 0 to 2^30 - 1"),
        (["--heads", "0"], "--heads: is 0, must be a whole number from 1 to 2^30 - 1"),
        (["--window-rows", "fp8"], "--window-rows: is 'fp8', must be bf16, e4m3_bf16, e4m3 or"),
        (["--compressed-keys", "some"], "--compressed-keys: is 'some', must be list or range"),
    ],
)
def test_bad_usage(cli, wrong, message):
    result = cli("dsv4-attention", *wrong)
    assert result.returncode == USAGE
    assert message in result.stderr and result.stdout == ""


def test_the_reproducing_command_has_the_whole_case(cli):
    asked = [*RANGE, "--seqlen", "3", "--window-rows", "e4m3", "--inverse-rope", "--sinks"]
    asked += ["--scale", "0.5", "--seed", "7", "--dtype", "fp16", "--kernel", "cpu"]
    result = cli(*SMALL, *KEYS, *asked)
    assert result.returncode == UNSUPPORTED
    (command,) = [line for line in result.stdout.splitlines() if "  reproduce: " in line]
    arguments = shlex.split(command)[2:]
    again = cli(*arguments, DTYPE="fp32", SEED="1", WINDOW="4", SINKS="0")
    assert again.stdout == result.stdout
    for each in ("--seqlen 3", "--window-rows e4m3", "--compressed-keys range", "--seed 7"):
        assert each in command
