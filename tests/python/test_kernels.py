"""The kernel table and the package's own names."""

import re
import subprocess
import sys

import pytest

import tilewright


def test_the_cpu_kernel_runs_everywhere():
    by_operation = {row.operation: row for row in tilewright.kernels() if row.name == "cpu"}
    assert by_operation["attention"].dtypes == ("fp32", "fp16", "bf16")
    assert by_operation["gemm_nvfp4"].dtypes == ("bf16", "fp16", "e2m1x2")
    assert all(kernel.device == "cpu" for kernel in by_operation.values())
    assert all(kernel.why_not is None for kernel in by_operation.values())


def test_the_ladder_is_listed_with_its_constraints():
    attention = [row for row in tilewright.kernels() if row.operation == "attention"]
    ladder = [kernel for kernel in attention if kernel.device == "cuda"]
    rungs = [kernel.name for kernel in ladder if kernel.name != "flash"]
    assert {"k1", "k4", "k6"} < set(rungs)
    assert rungs == sorted(rungs, key=lambda name: name[:2])
    for kernel in ladder:
        assert kernel.architectures == (90,)
        assert "bf16" in kernel.dtypes
        assert {"64", "128"} <= set(kernel.limits["head_dim"].split(", "))
        assert kernel.takes("window") == (kernel.name == "flash")


def test_why_not_names_what_is_missing():
    from tilewright import _native

    sizes = {"batch": 1, "q_len": 3, "kv_len": 3, "heads": 1, "kv_heads": 1, "head_dim": 40}
    features = {"v_dim": 40, "causal": False, "packed": False}
    problem = _native.AttentionProblem(dtype="bf16", **sizes, **features)
    assert _native.why_not("cpu", problem) is None
    with pytest.raises(tilewright.InvalidArgumentError, match="kernel: is 'k99'"):
        _native.why_not("k99", problem)
    assert "device: is cuda:63" in _native.why_not("k4", problem, device_index=63)


def test_version_and_commit():
    assert re.fullmatch(r"\d+\.\d+\.\d+", tilewright.__version__)
    assert tilewright.__commit__


def test_the_package_imports_without_the_compiled_module():
    blocked = "import sys; sys.modules['tilewright._native'] = None; "
    code = blocked + "import tilewright.plot.__main__; print(tilewright.Error.__name__)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "Error\n"
