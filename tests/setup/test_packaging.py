"""Which package is built: with CUDA or for the CPU alone, with or without the command line."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

import pytest

from tilewright import _command

ROOT = pathlib.Path(__file__).parents[2]
sys.path.append(str(ROOT / "cmake"))

import build_backend

NO_NVCC = {"PATH": "/usr/bin:/bin", "CUDA_HOME": "/nonexistent"}
CPU_ONLY = "TILEWRIGHT_CUDA=OFF pip install ."

# What every build includes, by itself.
PROJECT = f"""\
cmake_minimum_required(VERSION 3.24...3.25)
project(alone LANGUAGES NONE)
include({ROOT}/cmake/TilewrightCompilers.cmake)
get_target_property(options tilewright_warnings INTERFACE_COMPILE_OPTIONS)
message(STATUS "warnings: ${{options}}")
"""


@pytest.fixture
def configure(tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(PROJECT)
    cmake = shutil.which("cmake")

    def run(*options: str, **environment: str) -> tuple[int, str]:
        command = [cmake, "-S", tmp_path, "-B", tmp_path / "build", "-G", "Ninja"]
        command += [f"-D{option}" for option in ("TILEWRIGHT_CUDA=AUTO", *options)]
        result = subprocess.run(
            command, env=NO_NVCC | environment, capture_output=True, text=True, check=False
        )
        return result.returncode, " ".join((result.stdout + result.stderr).split())

    return run


def nvcc_in(folder: pathlib.Path, release: str = "13.0") -> pathlib.Path:
    nvcc = folder / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(f"#!/bin/sh\necho Cuda compilation tools, release {release}, V{release}.88\n")
    nvcc.chmod(0o755)
    return nvcc


def test_without_nvcc_the_build_is_for_the_cpu_and_says_so(configure):
    code, output = configure()
    assert code == 0
    assert "CUDA: off. This is a CPU-only build: there is no nvcc in CUDACXX, PATH or" in output


def test_with_nvcc_but_without_cutlass_the_build_fails_with_the_remedy(configure, tmp_path):
    nvcc = nvcc_in(tmp_path / "cuda")
    code, output = configure(CUDA_HOME=str(tmp_path / "cuda"))
    assert code != 0
    assert f"nvcc is there ({nvcc}), but CUTLASS 4.2's headers are not" in output
    assert build_backend.CUTLASS in output
    assert "CUTLASS_PATH" in output
    assert CPU_ONLY in output


@pytest.mark.parametrize("release", ["11.8", "12.4"])
def test_an_old_nvcc_fails_the_build_with_the_remedy(configure, tmp_path, release):
    nvcc = nvcc_in(tmp_path / "cuda", release)
    code, output = configure(CUDACXX=str(nvcc))
    assert code != 0
    assert f"{nvcc} is no nvcc 13: it says 'release {release}'" in output
    assert CPU_ONLY in output


def test_a_named_nvcc_that_is_not_there_fails_the_build(configure):
    code, output = configure(CUDACXX="/nonexistent/nvcc")
    assert code != 0
    assert "/nonexistent/nvcc is no nvcc 13: it says ''" in output


def test_cuda_is_left_out_where_asked_for(configure, tmp_path):
    nvcc_in(tmp_path / "cuda")
    assert configure("TILEWRIGHT_CUDA=OFF", CUDA_HOME=str(tmp_path / "cuda"))[0] == 0


def test_cuda_that_is_asked_for_is_never_left_out(configure):
    code, output = configure("TILEWRIGHT_CUDA=ON")
    assert code != 0
    assert "TILEWRIGHT_CUDA is ON, but there is no nvcc" in output


def test_another_word_than_on_off_auto_is_refused(configure):
    code, output = configure("TILEWRIGHT_CUDA=yes")
    assert code != 0
    assert "TILEWRIGHT_CUDA is 'yes', must be AUTO, ON or OFF" in output


def test_the_nvcc_in_venv_counts_only_where_cuda_is_asked_for(configure, tmp_path):
    nvcc = nvcc_in(tmp_path / ".venv/lib/python3.11/site-packages/nvidia/cu13")
    code, output = configure()
    assert (code, "CPU-only" in output) == (0, True)
    assert f"nvcc is there ({nvcc})" in configure("TILEWRIGHT_CUDA=ON")[1]


def test_warnings_are_errors_only_where_asked_for(configure):
    assert "-Werror" not in configure()[1]
    assert "-Werror" in configure("TILEWRIGHT_WERROR=ON")[1]


@pytest.mark.parametrize(
    ("environment", "settings", "wants"),
    [
        ({}, {}, False),
        ({"CUDACXX": "/opt/nvcc"}, {}, True),
        ({"CUDA_HOME": "CUDA"}, {}, True),
        ({"PATH": "CUDA/bin"}, {}, True),
        ({"CUDA_HOME": "CUDA", "CUTLASS_PATH": "/opt/cutlass"}, {}, False),
        ({"CUDA_HOME": "CUDA", "TILEWRIGHT_CUDA": "OFF"}, {}, False),
        ({"CUDA_HOME": "CUDA"}, {"cmake.define.TILEWRIGHT_CUDA": "OFF"}, False),
        ({"TILEWRIGHT_CUDA": "ON"}, {}, True),
    ],
)
def test_cutlass_is_a_build_requirement_where_cuda_is_built(
    monkeypatch, tmp_path, environment, settings, wants
):
    nvcc_in(tmp_path / "cuda")
    for name in ("CUDACXX", "CUTLASS_PATH", "TILEWRIGHT_CUDA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (NO_NVCC | environment).items():
        monkeypatch.setenv(name, value.replace("CUDA", str(tmp_path / "cuda")))
    monkeypatch.chdir(ROOT)
    for hook in ("wheel", "editable"):
        requirements = getattr(build_backend, f"get_requires_for_build_{hook}")(settings)
        assert (build_backend.CUTLASS in requirements) == wants


def test_one_version_of_cutlass_is_named():
    assert f"{build_backend.CUTLASS} " in (ROOT / "requirements" / "cuda.txt").read_text()


def test_the_package_brings_the_command():
    command = os.path.join(sysconfig.get_path("scripts"), "tilewright")
    result = subprocess.run([command, "list"], capture_output=True, text=True, check=True)
    assert re.match(r"attention +cpu ", result.stdout)
    assert subprocess.run([command, "bogus"], capture_output=True, check=False).returncode == 2


def test_a_package_without_the_command_line_says_what_was_missing(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(_command, "PROGRAM", tmp_path / "tilewright")
    assert _command.main() == 3
    error = capsys.readouterr().err
    assert "this installation of Tilewright has no command line" in error
    assert "apt-get install libcli11-dev nlohmann-json3-dev libfmt-dev" in error
