"""The launcher of CUDA compilations, around a compiler that says what it is told to."""

import pathlib
import subprocess
import sys

import pytest

LAUNCHER = pathlib.Path(__file__).parents[2] / "cmake" / "nvcc_launcher.py"
REGISTERS = "ptxas info    : Used 168 registers, used 16 barriers"
SERIALIZED = "ptxas info    : (C7511) wgmma.mma_async instructions are serialized due to ..."
INJECTED = "ptxas info    : (C7519) warpgroup.arrive is injected in around line 9 by compiler"
IGNORED = "ptxas info    : (C7507) setmaxnreg is ignored; unable to determine register count"

COMPILER = """\
import pathlib, sys
said, output, code = sys.argv[1], sys.argv[-1], int(sys.argv[2])
sys.stderr.write(said + "\\n")
pathlib.Path(output).write_text("object")
sys.exit(code)
"""


def compile_(
    tmp_path: pathlib.Path, said: str, code: int = 0, flags: tuple[str, ...] = ("--werror",)
) -> subprocess.CompletedProcess:
    compiler = tmp_path / "compiler.py"
    compiler.write_text(COMPILER)
    command = [sys.executable, str(compiler), said, str(code), "-c", "x.cu", "-o"]
    return subprocess.run(
        [sys.executable, str(LAUNCHER), *flags, *command, str(tmp_path / "x.o")],
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_good_report_is_kept_beside_the_object(tmp_path):
    result = compile_(tmp_path, REGISTERS)
    assert (result.returncode, result.stderr) == (0, "")
    assert (tmp_path / "x.o").exists()
    assert (tmp_path / "x.o.ptxas").read_text() == REGISTERS + "\n"


@pytest.mark.parametrize("note", [SERIALIZED, INJECTED, IGNORED])
def test_a_note_of_lost_performance_is_an_error(tmp_path, note):
    result = compile_(tmp_path, REGISTERS + "\n" + note)
    assert result.returncode == 1
    assert note in result.stderr
    assert not (tmp_path / "x.o").exists()
    assert not (tmp_path / "x.o.ptxas").exists()


def test_a_note_of_lost_performance_is_a_warning_in_a_users_build(tmp_path):
    result = compile_(tmp_path, SERIALIZED, flags=())
    assert result.returncode == 0
    assert f"warning: ptxas reports what makes kernels slow:\n  {SERIALIZED}\n" in result.stderr
    assert (tmp_path / "x.o.ptxas").exists()


def test_the_compilers_own_failure_is_passed_on(tmp_path):
    result = compile_(tmp_path, "x.cu(1): error: expected a ;", code=2)
    assert result.returncode == 2
    assert "expected a ;" in result.stderr
