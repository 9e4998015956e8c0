"""./run in a folder of its own, where programs only write down how they were called."""

import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]

# What `run` calls that changes nothing, and what the stub below stands for.
HARMLESS = ["bash", "basename", "cat", "cmp", "cp", "dirname", "grep", "ln", "mkdir", "nproc"]
HARMLESS += ["printf", "rm", "tail", "tr"]
STUBBED = ["apt-get", "ccache", "cmake", "ctest", "df", "g++", "ninja", "python3"]

STUB = """#!/bin/bash
echo "${0##*/} $*" >>"$STUBS/calls"
case "${0##*/} $*" in
  *"${FAIL:-no such call}"*) exit 1 ;;
  df*) printf 'Avail\\n%s\\n' "${FREE_GB:-100}" ;;
  "python3 -m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  *sysconfig*) echo "$STUBS" ;;
esac
"""
NVCC = "#!/bin/bash\necho Cuda compilation tools, release {}\n"
CPU_ONLY = "CUDA: OFF, the system has neither nvcc 13 nor an NVIDIA GPU"

no_gpu = pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="there is a GPU")


def write_program(path: pathlib.Path, text: str) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


class Checkout:
    def __init__(self, folder: pathlib.Path):
        self.root = folder / "a checkout"
        self.stubs = folder / "stubs"
        shutil.copytree(ROOT / "requirements", self.root / "requirements")
        shutil.copy(ROOT / "run", self.root)
        for name in STUBBED:
            write_program(self.stubs / name, STUB)
        for name in HARMLESS:
            (self.stubs / name).symlink_to(shutil.which(name))
        (self.stubs / "Python.h").touch()

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        environment = {"PATH": str(self.stubs), "STUBS": str(self.stubs)} | environment
        return subprocess.run(
            [self.root / "run", *arguments],
            env={"CUDA_HOME": "/nonexistent"} | environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def calls(self) -> str:
        """What was called since this was last asked."""
        text = (self.stubs / "calls").read_text()
        (self.stubs / "calls").unlink()
        return text


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bogus"], "unknown command 'bogus'"),
        (["test", "--bogus"], "unknown option '--bogus'"),
        ([], "a command is missing"),
    ],
)
def test_bad_usage_is_named(checkout, arguments, message):
    result = checkout.run(*arguments)
    assert result.returncode == 2
    assert result.stderr.startswith(f"error: {message}\n\nUsage: ./run COMMAND")


def test_an_unknown_command_of_tools_gpu_is_named():
    result = subprocess.run(
        [ROOT / "tools" / "gpu", "bogus"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert result.stderr.startswith("error: unknown command 'bogus'\n\nThe work that needs")


def test_a_wrong_value_of_tilewright_cuda_is_named(checkout):
    result = checkout.run("build", TILEWRIGHT_CUDA="yes")
    assert result.returncode == 1
    assert "TILEWRIGHT_CUDA is 'yes', must be AUTO, ON or OFF" in result.stderr


@no_gpu
def test_without_nvcc_the_build_is_for_the_cpu(checkout):
    result = checkout.run("build")
    assert result.returncode == 0, result.stderr
    assert CPU_ONLY in result.stdout
    calls = checkout.calls()
    assert "cmake --preset cpu -DTILEWRIGHT_CUDA=OFF\n" in calls
    assert "cmake.define.TILEWRIGHT_CUDA=OFF" in calls
    assert "cuda.txt" not in calls


@no_gpu
def test_pypis_nvcc_counts_only_where_cuda_is_asked_for(checkout):
    assert checkout.run("setup", "--no-cuda").returncode == 0
    toolkit = checkout.root / ".venv/lib/python3.11/site-packages/nvidia/cu13"
    nvcc = write_program(toolkit / "bin" / "nvcc", NVCC.format("13.0"))
    (toolkit / "lib").mkdir()

    assert CPU_ONLY in checkout.run("build").stdout
    assert "--preset cpu" in checkout.calls()
    assert "CUDA: ON, as asked for" in checkout.run("build", "--cuda").stdout
    assert f"-DTILEWRIGHT_CUDA=ON -DCMAKE_CUDA_COMPILER={nvcc}" in checkout.calls()


@pytest.mark.parametrize("variable", ["PATH", "CUDACXX", "CUDA_HOME"])
def test_the_systems_nvcc_counts(checkout, tmp_path, variable):
    folder = checkout.stubs if variable == "PATH" else tmp_path / "cuda" / "bin"
    nvcc = write_program(folder / "nvcc", NVCC.format("13.0"))
    values = {"PATH": folder, "CUDACXX": nvcc, "CUDA_HOME": folder.parent}
    result = checkout.run("build", **{variable: str(values[variable])})
    assert f"CUDA: ON, nvcc 13 is there, {nvcc}" in result.stdout
    calls = checkout.calls()
    assert f"-DCMAKE_CUDA_COMPILER={nvcc}\n" in calls
    assert "requirements/nvcc.txt" not in calls


@no_gpu
def test_an_old_nvcc_does_not_count(checkout):
    write_program(checkout.stubs / "nvcc", NVCC.format("12.4"))
    assert CPU_ONLY in checkout.run("build").stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="Debian's packages are installed as root")
def test_without_a_network_debians_packages_are_named(checkout):
    (checkout.stubs / "ninja").unlink()
    result = checkout.run("setup", "--no-cuda", FAIL="apt-get install")
    assert result.returncode == 1
    expected = "error: could not fetch Debian's packages ninja-build. The network seems to be unre"
    assert expected in result.stderr


def test_without_a_network_pypis_packages_are_named(checkout):
    result = checkout.run("setup", "--no-cuda", FAIL="pip install")
    assert result.returncode == 1
    expected = "could not fetch PyPI's packages of requirements/dev.txt. The network seems to be un"
    assert expected in result.stderr
    assert checkout.run("setup", "--no-cuda").returncode == 0


def test_pytorch_is_installed_where_asked_for(checkout):
    assert checkout.run("setup", "--no-cuda").returncode == 0
    assert "torch.txt" not in checkout.calls()
    assert checkout.run("setup", "--no-cuda", "--torch").returncode == 0
    assert "--requirement requirements/torch.txt\n" in checkout.calls()


def test_a_full_disk_is_named_before_anything_is_fetched(checkout):
    result = checkout.run("setup", "--no-cuda", "--torch", FREE_GB="9")
    assert result.returncode == 1
    expected = f"error: requirements/torch.txt needs 11 GB of disk, {checkout.root} has 9 GB free"
    assert expected in result.stderr
    assert "torch.txt" not in checkout.calls()


def test_what_was_made_in_another_folder_is_made_anew(checkout):
    for build in ("cpu", "python-cpu", "embed"):
        folder = checkout.root / "build" / build
        folder.mkdir(parents=True)
        (folder / "CMakeCache.txt").write_text("CMAKE_HOME_DIRECTORY:INTERNAL=/elsewhere\n")
    (checkout.root / ".venv").mkdir()
    (checkout.root / ".venv" / "made-in").write_text("/elsewhere\n")

    result = checkout.run("build", "--no-cuda")
    assert result.returncode == 0, result.stderr
    assert "Removing .venv, which was not made in this folder" in result.stdout
    assert "Removing build/cpu, which was configured in another folder" in result.stdout
    assert "Removing build/python-cpu, which was" in result.stdout
    left = {path.name for path in (checkout.root / "build").iterdir()}
    assert left == {"embed"}  # the user's own
    assert "venv" in checkout.calls()


def test_what_was_made_in_this_folder_is_kept(checkout):
    cache = checkout.root / "build" / "cpu" / "CMakeCache.txt"
    cache.parent.mkdir(parents=True)
    cache.write_text(f"CMAKE_HOME_DIRECTORY:INTERNAL={checkout.root}\n")
    for _ in range(2):
        assert "Removing" not in checkout.run("build", "--no-cuda").stdout
    assert cache.exists()
    assert checkout.calls().count("-m venv") == 1
