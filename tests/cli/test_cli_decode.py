"""tilewright decode: exit status, messages, checks, results files."""

import itertools
import shlex

import pytest
from results_file import read_lines

PASS, _, USAGE, UNSUPPORTED = range(4)
SMALL = ["decode", "--heads", "4", "--kv-heads", "2", "--headdim", "32", "--gap", "0"]
SMALL += ["--samples", "5"]
EVEN = ["--kv-seqlen", "40"]
RAGGED = ["--kv-seqlen", "40,7,33"]
PACKED = [*RAGGED, "--seqlen", "1,5,3", "--causal"]


@pytest.mark.parametrize(
    ("dtype", "cache_dtype"),
    [*itertools.product(["bf16", "fp16", "fp32"], ["same", "e4m3"]), ("e4m3", "same")],
)
@pytest.mark.parametrize(
    "case",
    [
        ["--batch", "3", *EVEN],
        ["--seqlen", "6", "--causal", *EVEN],
        RAGGED,
        PACKED,
        ["--page-size", "1", *EVEN],
        ["--page-size", "16", *RAGGED],
        ["--page-size", "8", *PACKED],
        ["--window-left", "5", "--softcap", "2", "--sinks", "--seqlen", "3", *EVEN],
        ["--batch-invariant", *RAGGED],
        ["--v-headdim", "16", "--scale", "0.5", *EVEN],
    ],
)
def test_check_passes_on_the_cpu(cli, dtype, cache_dtype, case):
    result = cli(*SMALL, "--dtype", dtype, "--cache-dtype", cache_dtype, "--check", *case)
    assert result.returncode == PASS, result.stdout + result.stderr
    header, row = result.stdout.splitlines()
    assert header.split()[:2] == ["kernel", "case"] and row.split()[0] == "cpu"
    assert "ok: relative" in row and ("e4m3" in row) == ("e4m3" in (dtype, cache_dtype))


def test_results_file(cli, tmp_path):
    path = tmp_path / "decode.jsonl"
    arguments = [*SMALL, *EVEN, "--dtype", "fp32", "--batch", "2", "--check", "--json", path]
    assert cli(*arguments, "--kernel", "all").returncode == PASS
    (line,) = read_lines(path)
    assert line["operation"] == "attention_with_kvcache" and line["impl"] == "tilewright/cpu"
    assert line["case"] == {
        "dtype": "fp32",
        "batch": 2,
        "q_len": 1,
        "kv_len": 40,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 32,
        "v_dim": 32,
        "causal": False,
        "cache_dtype": "fp32",
        "page_size": 0,
    }
    assert 0 < line["rel_fro_error"] < 1e-5
    assert line["gbps"] == pytest.approx(
        2 * (40 * 2 + 4) * 64 * 4 / line["median_us"] / 1e3, rel=1e-4
    )
    assert line["tflops"] == pytest.approx(2 * 2 * 4 * 40 * 64 / line["median_us"] / 1e6, rel=1e-4)


def test_results_of_features(cli, tmp_path):
    path = tmp_path / "decode.jsonl"
    features = ["--page-size", "16", "--cache-dtype", "e4m3", "--batch-invariant", "--sinks"]
    features += ["--window-left", "9"]
    assert cli(*SMALL, *PACKED, *features, "--json", path).returncode == PASS
    (line,) = read_lines(path)
    case = line["case"]
    assert (case["batch"], case["q_len"], case["kv_len"]) == (3, 9, 40)
    assert (case["q_lens"], case["kv_lens"]) == ([1, 5, 3], [40, 7, 33])
    assert (case["cache_dtype"], case["page_size"], case["window"]) == ("e4m3", 16, [9, None])
    assert case["batch_invariant"] and case["sinks"] and case["causal"]


def test_lengths_that_are_all_the_same_are_one(cli, tmp_path):
    paths = [tmp_path / name for name in ("one", "many")]
    for path, lengths in zip(paths, (["--batch", "3"], ["--seqlen", "1,1,1"]), strict=True):
        assert cli(*SMALL, *EVEN, *lengths, "--json", path).returncode == PASS
    one, many = (read_lines(path)[0]["case"] for path in paths)
    assert one == many and "q_lens" not in one


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--kv-seqlen", "0"], "--kv-seqlen: is 0, must be a whole number from 1 to 2^30 - 1"),
        (["--kv-seqlen", "5,x"], "--kv-seqlen: is x, must be a whole number from 1 to 2^30 - 1"),
        (["--seqlen", "1,2", "--batch", "3"], "--seqlen: has 2 lengths, must have 1 or 3, one for"),
        (["--seqlen", "1,2", "--kv-seqlen", "5,6,7"], "--seqlen: has 2 lengths, must have 1 or 3"),
        (["--kv-heads", "3"], "--kv-heads: is 3, must divide --heads, which is 32"),
        (["--page-size", "-1"], "--page-size: is -1, must be a whole number from 0 to 2^30 - 1"),
        (["--cache-dtype", "int8"], "--cache-dtype: is 'int8', must be same, bf16, fp16, fp32 or"),
        (["--cache-dtype", "fp16"], "--cache-dtype: is fp16, must be e4m3 or that of q, bf16"),
        (["--dtype", "e4m3", "--cache-dtype", "bf16"], "is bf16, must be that of q, e4m3"),
        (["--dtype", "int8"], "--dtype: is 'int8'"),
        (["--softcap", "-1"], "--softcap: is -1"),
    ],
)
def test_bad_usage(cli, wrong, message):
    result = cli("decode", *wrong)
    assert result.returncode == USAGE
    assert message in result.stderr and result.stdout == ""


def test_the_reproducing_command_has_the_whole_case(cli):
    asked = ["--dtype", "fp16", "--cache-dtype", "e4m3", "--page-size", "16", "--v-headdim", "16"]
    features = ["--window-left", "3", "--softcap", "2", "--sinks", "--scale", "0.5", "--causal"]
    flags = ["--batch-invariant", "--seed", "7", "--kernel", "decode", "--device", "cpu"]
    result = cli(*SMALL, *PACKED, *asked, *features, *flags)
    assert result.returncode == UNSUPPORTED
    (command,) = [line for line in result.stdout.splitlines() if "  reproduce: " in line]
    arguments = shlex.split(command)[2:]
    again = cli(*arguments, DTYPE="fp32", SEED="1", KERNEL="cpu", PAGE_SIZE="4", SINKS="0")
    assert again.stdout == result.stdout
    for each in ("--seqlen 1,5,3", "--kv-seqlen 40,7,33", "--page-size 16", "--seed 7"):
        assert each in command
