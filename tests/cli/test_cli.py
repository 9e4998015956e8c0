"""The command line, run as a person would: exit status, messages, tables, results files.

Needs the path of the binary in TILEWRIGHT_CLI, or the build folder in TILEWRIGHT_BUILD_DIR. GPUs
are hidden from it: what it says here is what it says on a machine without one.
"""

import json
import os
import shlex
import subprocess

import pytest
from results_file import read_lines

PASS, MISMATCH, USAGE, UNSUPPORTED = range(4)
SMALL = ["--seqlen", "40", "--heads", "2", "--headdim", "16", "--gap", "0"]
# Of each command a small case, and the operations whose kernels it runs.
COMMANDS = {
    "attention": (SMALL, ["attention"]),
    "decode": (
        ["--kv-seqlen", "40", "--heads", "2", "--kv-heads", "1", "--headdim", "16", "--gap", "0"],
        ["attention_with_kvcache"],
    ),
    "gemm": (["--m", "5", "--n", "48", "--k", "128", "--gap", "0"], ["gemm_bf16", "gemm_nvfp4"]),
    "quantize": (["--rows", "70", "--columns", "208", "--gap", "0"], ["quantize_nvfp4"]),
}
SMALL_SWEEP = ["sweep", "--seqlens", "16,32", "--headdims", "16,32", "--tokens", "32",
               "--hidden", "64", "--gap", "0"]  # fmt: skip


def reproducing_commands(output):
    prefix = "  reproduce: "
    return [
        shlex.split(line.removeprefix(prefix))
        for line in output.splitlines()
        if line.startswith(prefix)
    ]


def test_an_unknown_command_is_named(cli):
    result = cli("bogus")
    assert result.returncode == USAGE
    assert result.stderr.startswith("error: The following argument was not expected: bogus\n")


def test_a_missing_command_is_bad_usage(cli):
    result = cli()
    assert result.returncode == USAGE
    assert result.stderr.startswith("error: A command is required\n")


# ---- attention


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize(
    "case",
    [
        [],
        ["--causal"],
        ["--causal", "--kv-seqlen", "17", "--kv-heads", "1"],  # rows that see no key
        ["--batch", "2", "--scale", "0.5", "--kv-seqlen", "131"],
        ["--window-left", "9", "--window-right", "2", "--softcap", "3", "--sinks"],
        ["--v-headdim", "24", "--causal", "--window-left", "0", "--sinks"],
        ["--window-right", str(2**63 - 1)],
        ["--kv-seqlen", "2", "--window-left", str(2**63 - 1)],
    ],
)
def test_check_passes_on_the_cpu(cli, dtype, case):
    result = cli("attention", "--kernel", "cpu", "--check", "--dtype", dtype, *SMALL, *case)
    assert result.returncode == PASS, result.stdout + result.stderr
    header, row = result.stdout.splitlines()
    assert header.split()[:2] == ["kernel", "case"]
    assert row.split()[:3] == ["cpu", dtype, f"b{2 if '--batch' in case else 1}"]
    assert "ok: relative" in row


def test_environment_variables_stand_for_options(cli, tmp_path):
    arguments = ["attention", "--gap", "0", "--json", "out.jsonl"]
    small = {"SEQLEN": "24", "HEADDIM": "32", "HEADS": "3", "BATCH": "2", "KERNEL": "cpu"}
    result = cli(*arguments, CHECK="1", CAUSAL="0", DTYPE="fp32", SEED="7", **small)
    assert result.returncode == PASS, result.stderr
    (line,) = read_lines(tmp_path / "out.jsonl")
    assert line["rel_fro_error"] is not None
    assert line["case"] == {
        "dtype": "fp32", "batch": 2, "q_len": 24, "kv_len": 24, "heads": 3, "kv_heads": 3,
        "head_dim": 32, "v_dim": 32, "causal": False,
    }  # fmt: skip
    cli(*arguments, "--seqlen", "16", CHECK="0", CAUSAL="1", **small)
    (line,) = read_lines(tmp_path / "out.jsonl")
    assert line["rel_fro_error"] is None
    assert line["case"]["q_len"] == 16, "the command line wins"
    assert line["case"]["causal"] is True


def test_results_line(cli, tmp_path):
    wide = ["--kv-seqlen", "80", "--causal", "--samples", "9"]
    result = cli("attention", "--json", "out.jsonl", *SMALL, *wide)
    assert result.returncode == PASS
    (line,) = read_lines(tmp_path / "out.jsonl")
    assert line["operation"] == "attention" and line["impl"] == "tilewright/cpu"
    assert line["run"].endswith(" " + line["impl_version"])
    assert line["samples"] == 9
    assert line["p10_us"] <= line["median_us"] <= line["p90_us"]
    bytes_moved = 2 * 2 * 16 * 2 * (40 + 80)
    assert line["gbps"] == pytest.approx(bytes_moved / line["median_us"] * 1e-3, rel=1e-4)
    assert line["cold_l2"] is False and line["driver"] is None and line["power_w"] is None
    assert not {"scale", "window", "softcap", "sinks"} & line["case"].keys()


@pytest.mark.parametrize(
    ("q_len", "kv_len", "causal", "pairs"),
    [
        (40, 40, False, 40 * 40),
        (40, 40, True, 40 * 40 / 2),  # nominally, as other libraries count them
        (40, 80, False, 40 * 80),
        (40, 80, True, sum(i + 41 for i in range(40))),
        (1, 80, True, 80),
        (80, 40, True, sum(max(i - 39, 0) for i in range(80))),  # the first rows see no key
    ],
)
def test_flops_count_the_pairs_that_are_seen(cli, tmp_path, q_len, kv_len, causal, pairs):
    lengths = ["--seqlen", q_len, "--kv-seqlen", kv_len, "--causal" if causal else "--no-causal"]
    assert cli("attention", "--json", "out.jsonl", *SMALL[2:], *lengths).returncode == PASS
    (line,) = read_lines(tmp_path / "out.jsonl")
    flops = 2 * 2 * pairs * (16 + 16)
    assert line["tflops"] == pytest.approx(flops / line["median_us"] * 1e-6, rel=1e-4)


def test_results_line_of_a_case_with_features(cli, tmp_path):
    features = ["--v-headdim", "24", "--window-left", "3", "--softcap", "2.5", "--sinks"]
    result = cli("attention", "--json", "out.jsonl", *SMALL, *features)
    assert result.returncode == PASS
    assert " d16/24 full window softcap sinks " in result.stdout
    (line,) = read_lines(tmp_path / "out.jsonl")
    case = line["case"]
    assert case["head_dim"] == 16 and case["v_dim"] == 24
    assert case["window"] == [3, None] and case["softcap"] == 2.5 and case["sinks"] is True
    seen = sum(40 - max(i - 3, 0) for i in range(40))
    flops = 2 * 2 * seen * (16 + 24)
    assert line["tflops"] == pytest.approx(flops / line["median_us"] * 1e-6, rel=1e-4)


def test_max_seconds_bounds_the_samples(cli, tmp_path):
    """All of them would take many minutes."""
    slow = ["--seqlen", "512", "--heads", "8", "--headdim", "64", "--samples", "100000"]
    result = cli("attention", "--max-seconds", "0.2", "--json", "out.jsonl", *slow)
    assert result.returncode == PASS
    (line,) = read_lines(tmp_path / "out.jsonl")
    assert 5 <= line["samples"] < 100000


def test_all_takes_what_can_run(cli):
    result = cli("attention", "--kernel", "all", *SMALL)
    assert result.returncode == PASS
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == ["cpu"]


@pytest.mark.parametrize("command", COMMANDS)
def test_unsupported_kernel_is_recorded_and_reproduced(cli, binary, tmp_path, kernels_of, command):
    small, operations = COMMANDS[command]
    kernel = next(k["name"] for k in kernels_of(*operations) if k["device"] == "cuda")
    result = cli(command, "--kernel", f"cpu,{kernel}", "--json", "out.jsonl", *small)
    assert result.returncode == UNSUPPORTED
    header, *rows = result.stdout.splitlines()
    assert header.split()[:2] == ["kernel", "case"]
    assert rows[0].split()[0] == "cpu" and rows[-2].split()[0] == kernel
    assert "cannot run: device: " in rows[-2]
    ran, *_, refused = read_lines(tmp_path / "out.jsonl")
    assert ran["supported"] and not refused["supported"]
    assert ran["case"] == refused["case"]
    assert refused["reason"].startswith("device: ")
    (command,) = reproducing_commands(result.stdout)
    assert command[0] == binary
    again = cli(*command[1:])
    assert again.returncode == UNSUPPORTED
    assert reproducing_commands(again.stdout) == [command]


def test_reproducing_command_overrides_the_environment(cli):
    environment = {"CAUSAL": "1", "SEQLEN": "99", "KERNEL": "cpu", "DTYPE": "fp32"}
    environment |= {"WINDOW_LEFT": "5", "SOFTCAP": "2", "SINKS": "1", "V_HEADDIM": "32"}
    (command,) = reproducing_commands(cli("attention", "--kernel", "k2", *SMALL).stdout)
    assert reproducing_commands(cli(*command[1:], **environment).stdout) == [command]


@pytest.mark.parametrize(
    ("case", "needed_bytes"),
    [
        (["attention", "--seqlen", "1000000000"], 10**9 * 65536),
        (["decode", "--batch", "1000000000"], 10**9 * 8192 * 8 * 256 * 2 * 2),
        (["quantize", "--rows", "1000000000", "--columns", "1000000000"], 4 * 10**18),
        (
            ["gemm", "--m", "1000000000", "--n", "16384", "--k", "16"],
            10**9 * (3 * 16384 * 2 + 2 * 16 * 2),
        ),
        (["gemm", "--n", "1000000000", "--k", "16384"], 10**9 * 16384 * 4),
        (["gemm", "--l", "1000000000", "--n", "1000000000"], 10**18 * 4096 * 4),
    ],
)
def test_a_problem_that_fits_nowhere_names_the_bytes(cli, case, needed_bytes):
    result = cli(*case, "--kernel", "cpu")
    assert result.returncode == UNSUPPORTED
    needed = f"needs {needed_bytes} bytes of host memory"
    assert f"cannot run: memory: the case {needed}" in result.stdout


@pytest.mark.parametrize(
    "problem",
    [
        ["attention", "--seqlen", "8192"],
        ["decode", "--kv-seqlen", "32768"],
        ["gemm", "--n", "8192"],
        ["quantize", "--rows", "16384"],
    ],
)
def test_memory_that_is_not_given_is_unsupported(cli, address_space_limit, problem):
    before = address_space_limit(kib=120_000)
    result = cli(*problem, "--check", before=before, OMP_NUM_THREADS="1")
    assert result.returncode == UNSUPPORTED
    assert "error: memory: " in result.stderr


@pytest.fixture(scope="session")
def wrong_exp(tmp_path_factory):
    """A library whose exp() is wrong: preloaded, it spoils the float64 reference."""
    folder = tmp_path_factory.mktemp("wrong_exp")
    source, library = folder / "exp.c", folder / "libexp.so"
    source.write_text("double exp(double x) { return x < -1e3 ? 0.0 : 1.0 + 0.5 * x * x; }\n")
    compiler = os.environ.get("CC", "gcc")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return str(library)


def test_wrong_result_fails_and_is_not_timed(cli, binary, wrong_exp, tmp_path):
    arguments = ["attention", "--check", "--seed", "3", "--json", "out.jsonl", *SMALL]
    result = cli(*arguments, LD_PRELOAD=wrong_exp)
    assert result.returncode == MISMATCH
    assert "FAILED: wrong result: o's relative error is" in result.stdout
    (line,) = read_lines(tmp_path / "out.jsonl")
    assert not line["supported"] and line["rel_fro_error"] > 3e-3
    (command,) = reproducing_commands(result.stdout)
    assert command[0] == binary and command[-1] == "--check"
    assert cli(*command[1:], LD_PRELOAD=wrong_exp).returncode == MISMATCH
    assert cli(*command[1:]).returncode == PASS


# ---- numbers and flags


@pytest.mark.parametrize(
    ("command", "option", "values", "must_be"),
    [
        ("attention", "--heads", ["0", "-1", "1.5", "x", "3x", "1e3"], "a whole number from 1 to"),
        ("attention", "--window-left", ["-2", "0.5"], "a whole number from 0 to 2^63 - 1, or -1"),
        ("attention", "--softcap", ["-1", "inf", "nan", "x"], "a number of FP32, finite and"),
        ("attention", "--scale", ["-1", "inf"], "a number of FP32, finite and at least 0"),
        ("gemm", "--m", ["1.5", "9" * 20, "0x10"], "a whole number from 1 to 2^30 - 1"),
        ("gemm", "--seed", ["-1", "9" * 20, "1.5"], "a whole number from 0 to 2^64 - 1"),
        ("quantize", "--samples", ["0", "9" * 10], "a whole number from 1 to 2^31 - 1"),
        ("quantize", "--gap", ["-1", "nan", "inf"], "a number, finite and at least 0"),
        ("sweep", "--max-seconds", ["-1", "x"], "a number, finite and at least 0"),
        ("sweep", "--tokens", ["0", "1.5"], "a whole number from 1 to 2^30 - 1"),
        ("sweep", "--check-limit", ["x"], "a number"),
    ],
)
def test_numbers_that_are_none_or_out_of_range(cli, command, option, values, must_be):
    for value in values:
        result = cli(command, f"{option}={value}")
        assert result.returncode == USAGE
        assert result.stderr.startswith(f"error: {option}: is {value}, must be {must_be}")


def test_a_wrong_number_in_a_list_or_of_the_environment(cli):
    in_list = cli("sweep", "--seqlens", "16,1.5")
    of_environment = cli("attention", SEQLEN="many")
    for result, message in ((in_list, "--seqlens: is 1.5"), (of_environment, "--seqlen: is many")):
        assert result.returncode == USAGE
        assert result.stderr.startswith(f"error: {message}, must be a whole number from 1 to")


@pytest.mark.parametrize("value", ["-1", "2", "-", "maybe", "18446744073709551615"])
def test_a_flag_is_on_or_off(cli, value):
    by_name = cli("attention", f"--check={value}")
    of_environment = cli("attention", CHECK=value)
    for result in (by_name, of_environment):
        assert result.returncode == USAGE
        assert result.stderr.startswith(f"error: --check: is {value}, must be one of 1, true, on,")
    negation = cli("attention", f"--no-flush-l2={value}")
    assert negation.returncode == USAGE
    assert f"error: --no-flush-l2: has the value '{value}', must have none" in negation.stderr
    for known in ("1", "True", "off", "no"):
        assert cli("attention", f"--causal={known}", *SMALL, FLUSH_L2=known).returncode == PASS


# ---- sweep


def test_sweep_runs_every_case(cli, tmp_path):
    result = cli(*SMALL_SWEEP, "--check", "--json", "out.jsonl")
    assert result.returncode == PASS, result.stdout + result.stderr
    lines = read_lines(tmp_path / "out.jsonl")
    cases = [
        (line["case"]["head_dim"], line["case"]["causal"], line["case"]["q_len"]) for line in lines
    ]
    assert cases == [(d, c, n) for d in (16, 32) for c in (False, True) for n in (16, 32)]
    for line in lines:
        assert line["case"]["batch"] * line["case"]["q_len"] == 32
        assert line["case"]["heads"] * line["case"]["head_dim"] == 64
        assert line["rel_fro_error"] is not None
    assert len({line["run"] for line in lines}) == 1
    assert len(result.stdout.splitlines()) == 1 + len(lines), "a header and a line a case"


def test_sweep_says_what_it_did_not_check(cli, tmp_path):
    result = cli(*SMALL_SWEEP, "--check", "--check-limit", "0.0002", "--json", "out.jsonl")
    assert result.returncode == PASS
    lines = read_lines(tmp_path / "out.jsonl")
    unchecked = [line for line in lines if line["rel_fro_error"] is None]
    assert len(unchecked) == 2 and all(line["case"]["q_len"] == 32 for line in unchecked)
    assert result.stdout.count("not checked\n") == 2
    assert "2 not checked: above --check-limit, 0.0002 GFLOP" in result.stdout


def test_sweep_resumes_where_it_was_cut_off(cli, tmp_path):
    path = tmp_path / "out.jsonl"
    assert cli(*SMALL_SWEEP, "--json", path).returncode == PASS
    whole = path.read_text().splitlines(keepends=True)
    path.write_text("".join(whole[:3]) + whole[3][:40])
    result = cli(*SMALL_SWEEP, "--json", path, "--resume")
    assert result.returncode == PASS
    assert "3 of 8 were in" in result.stdout
    resumed = path.read_text().splitlines(keepends=True)
    assert resumed[:3] == whole[:3]
    lines = read_lines(path)
    assert [line["case"] for line in lines] == [json.loads(text)["case"] for text in whole]
    assert len({line["run"] for line in lines}) == 1, "it is the same run"


def test_resume_measures_again_what_another_commit_measured(cli, tmp_path):
    path = tmp_path / "out.jsonl"
    cli(*SMALL_SWEEP, "--json", path)
    lines = read_lines(path)
    path.write_text("".join(json.dumps(line | {"impl_version": "0"}) + "\n" for line in lines))
    assert "were in" not in cli(*SMALL_SWEEP, "--json", path, "--resume").stdout
    assert len(read_lines(path)) == 2 * len(lines)


def test_plain_sweep_replaces_the_file(cli, tmp_path):
    path = tmp_path / "out.jsonl"
    for _ in range(2):
        cli(*SMALL_SWEEP, "--causal", "1", "--json", path)
    assert len(read_lines(path)) == 4


def test_sweep_records_cases_that_cannot_run(cli, tmp_path):
    result = cli(*SMALL_SWEEP, "--kernels", "cpu,k4", "--json", "out.jsonl")
    assert result.returncode == PASS, "some can run"
    assert len(reproducing_commands(result.stdout)) == 8
    supported = [line["supported"] for line in read_lines(tmp_path / "out.jsonl")]
    assert supported == [True, False] * 8
    assert cli(*SMALL_SWEEP, "--kernels", "k4").returncode == UNSUPPORTED


# ---- bad usage


@pytest.mark.parametrize(
    "arguments",
    [
        ["attention", "--kernel", "k9"],
        ["attention", "--seqlen", "0"],
        ["attention", "--seqlen", "abc"],
        ["attention", "--kv-seqlen", "-1"],
        ["attention", "--headdim", "0"],
        ["attention", "--heads", "1073741824"],
        ["attention", "--kv-heads", "3"],
        ["attention", "--batch", "1.5"],
        ["attention", "--dtype", "int8"],
        ["attention", "--scale", "-1"],
        ["attention", "--scale", "nan"],
        ["attention", "--v-headdim", "0"],
        ["attention", "--window-left", "-2"],
        ["attention", "--window-right", "-2"],
        ["attention", "--softcap", "-1"],
        ["attention", "--device", "tpu"],
        ["attention", "--device", "cuda:x"],
        ["attention", "--samples", "0"],
        ["attention", "--gap", "-1"],
        ["attention", "--max-seconds", "inf"],
        ["attention", "--json", "/no/such/folder/out.jsonl"],
        ["attention", "--tile", "64"],
        ["sweep", "--kernels", "k9"],
        ["sweep", "--seqlens", "500"],
        ["sweep", "--headdims", "0"],
        ["sweep", "--causal", "2"],
        ["sweep", "--tokens", "0"],
        ["sweep", "--hidden", "-64"],
        ["sweep", "--resume"],
    ],
)
def test_bad_usage_names_the_option(cli, arguments):
    result = cli(*arguments)
    assert result.returncode == USAGE
    assert arguments[1] in result.stderr
    assert result.stdout == "", "nothing was run"


@pytest.mark.parametrize(("variable", "value"), [("SEQLEN", "-4"), ("CHECK", "maybe")])
def test_bad_environment_names_the_option(cli, variable, value):
    result = cli("attention", **{variable: value})
    assert result.returncode == USAGE
    assert f"--{variable.lower()}" in result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_unknown_kernel_is_told_the_known_ones(cli, kernels_of, command):
    names = ",".join(kernel["name"] for kernel in kernels_of(*COMMANDS[command][1]))
    result = cli(command, "--kernel", "k9")
    assert result.returncode == USAGE
    assert f"error: --kernel: is 'k9', must be auto, all or some of {names}\n" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["attention", "--kernel", "k9"], USAGE),
        (["attention", "--device", "cuda"], UNSUPPORTED),
        (["sweep", "--device", "cuda"], UNSUPPORTED),
        (["quantize", "--device", "cuda"], UNSUPPORTED),
        (["decode", "--device", "cuda"], UNSUPPORTED),
        (["gemm", "--device", "cuda"], UNSUPPORTED),
        (["gemm", "--kernel", "k4"], USAGE),
    ],
)
def test_a_refused_run_leaves_the_results_file_alone(cli, tmp_path, arguments, code):
    path = tmp_path / "out.jsonl"
    assert cli(*arguments, "--json", path).returncode == code
    assert not path.exists()
    path.write_text("{}\n")
    assert cli(*arguments, "--json", path).returncode == code
    assert path.read_text() == "{}\n"


def test_a_missing_gpu_is_unsupported(cli):
    result = cli("attention", "--device", "cuda", "--kernel", "auto")
    assert result.returncode == UNSUPPORTED
    assert "cuda:0" in result.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["attention", "--help"], ["--version"]])
def test_help_is_no_error(cli, arguments):
    result = cli(*arguments)
    assert result.returncode == PASS
    assert "tilewright" in result.stdout


def test_no_command_is_bad_usage(cli):
    assert cli().returncode == USAGE
