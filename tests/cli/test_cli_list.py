"""The command line's list and info, on a machine that shows no GPU."""

import json
import pathlib

PASS = 0
ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_list_is_a_table_that_fits_a_screen(cli):
    result = cli("list")
    assert result.returncode == PASS
    kernels = json.loads(cli("list", "--json").stdout)
    table = [line for line in result.stdout.splitlines() if line and ": cannot run" not in line]
    operations = [line for line in table if line[1] != " "]
    rows = [line for line in table if line[1] == " "]
    assert all(len(line) <= 110 for line in table)
    named = dict.fromkeys(kernel["operation"] for kernel in kernels)
    assert [line.split()[0] for line in operations] == list(named)
    first = {line.split()[0]: line for line in operations}
    others = []
    for kernel in kernels:
        if kernel["name"] == "cpu":
            assert kernel["can_run"] and first[kernel["operation"]].endswith(kernel["summary"])
        else:
            others.append(kernel)
    assert [row[2:].split()[0] for row in rows] == [kernel["name"] for kernel in others]
    for row, kernel in zip(rows, others, strict=True):
        assert (row[0] == " ") == kernel["can_run"] and row.endswith(kernel["summary"])
    assert len(result.stdout.splitlines()) <= 60


def test_list_says_once_why_no_gpu_kernel_runs(cli):
    reasons = [line for line in cli("list").stdout.splitlines() if "cannot run here: " in line]
    assert len(reasons) == 1 and "cuda:0" in reasons[0]


def test_list_as_json(kernels_of):
    kernels = {kernel["name"]: kernel for kernel in kernels_of("attention")}
    assert len(kernels) == len(kernels_of("attention")), "no name stands for two kernels"
    assert next(iter(kernels)) == "cpu"
    cpu, k4 = kernels["cpu"], kernels["k4"]
    assert cpu["can_run"] and cpu["reason"] is None
    assert cpu["limits"] == {"head_dim": "at most 16384"} and cpu["architectures"] == []
    assert not k4["can_run"] and "cuda:0" in k4["reason"]
    assert k4["dtypes"] == ["bf16"] and k4["limits"]["head_dim"] == "64, 128"
    assert k4["limits"]["window"] == "none"
    assert k4["architectures"] == [90] and (ROOT / k4["doc"]).suffix == ".md"


def test_info_says_what_was_not_measured(cli):
    result = cli("info")
    assert result.returncode == PASS
    rows = {line[:22].strip(): line[23:] for line in result.stdout.splitlines()}
    version = cli("--version").stdout.strip().removeprefix("tilewright ")
    assert rows["tilewright"].startswith(version)
    assert "threads" in rows["cpu"]
    assert rows["gpu"].startswith("none: ")
    assert rows["copy, BF16 GEMM"] == "not measured: they need a GPU"
