"""The code of README.md and docs/using.md, the examples, and the links of all pages."""

import os
import pathlib
import re
import shlex
import subprocess
import sys
import sysconfig

import pytest

ROOT = pathlib.Path(__file__).parents[2]
NOT_SUPPORTED = 3  # the exit code of what this machine or build cannot do
USING = "docs/using.md"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


(TWO_COMMANDS,) = blocks("README.md", "sh")
(FIVE_LINES,) = blocks("README.md", "python")
ACTIVATING, INSTALLING, COMMANDS, BUILDING = blocks(USING, "sh")
(PYTHON,) = blocks(USING, "python")
(CPP,) = blocks(USING, "cpp")


@pytest.fixture
def shell(tmp_path):
    """Runs lines in tmp_path, with this build as build/cpu, and tilewright and python on PATH."""
    build_dir = pathlib.Path(os.environ.get("TILEWRIGHT_BUILD_DIR", ROOT / "build" / "cpu"))
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "cpu").symlink_to(build_dir)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    environment = os.environ | {"PATH": path} | cuda_toolkit_of(build_dir)

    def run(lines: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", lines],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def cuda_toolkit_of(build_dir: pathlib.Path) -> dict[str, str]:
    """Where the build has its CUDA from, which a program that links it must find again."""
    cache = build_dir / "CMakeCache.txt"
    nvcc = re.search(r"^CMAKE_CUDA_COMPILER:\w+=(/.*)/bin/nvcc$", cache.read_text(), re.MULTILINE)
    return {"CUDAToolkit_ROOT": nvcc[1]} if nvcc else {}


@pytest.mark.parametrize("code", [FIVE_LINES, PYTHON], ids=["README.md", USING])
def test_python(tmp_path, code):
    script = tmp_path / "page.py"
    script.write_text(code)
    subprocess.run([sys.executable, script], cwd=tmp_path, check=True)


@pytest.mark.parametrize("line", COMMANDS.splitlines(), ids=lambda line: line.partition("#")[0])
def test_command_line(shell, line):
    result = shell(line)
    if result.returncode == NOT_SUPPORTED:
        pytest.skip(re.search("(cannot run|error): .*", result.stdout + result.stderr)[0])
    assert result.returncode == 0, result.stdout + result.stderr


def test_cpp(shell, tmp_path):
    result = shell(BUILDING)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "largest error" in result.stdout

    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "main.cpp").write_text(CPP)
    (tmp_path / "own" / "CMakeLists.txt").symlink_to(ROOT / "examples" / "embed" / "CMakeLists.txt")
    result = shell(BUILDING.replace("examples/embed", "own"))
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.skipif("CI" not in os.environ, reason="takes minutes and the network: set CI=1")
def test_installing(tmp_path):
    debian, *lines = INSTALLING.splitlines()
    assert debian.startswith("apt-get install ")  # what ./run has seen to
    lines += ["tilewright list", f"python -c {shlex.quote(PYTHON)}"]
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "TILEWRIGHT_CUDA": "OFF"}
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(lines)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "this is a CPU-only build of Tilewright" in result.stdout


@pytest.mark.parametrize("line", TWO_COMMANDS.splitlines())
def test_the_two_commands(line):
    run, command = shlex.split(line, comments=True)
    usage = subprocess.run([ROOT / run, "help"], capture_output=True, text=True, check=True).stdout
    assert re.search(rf"^  {command}  ", usage, re.MULTILINE)


def test_activating():
    assert ACTIVATING == "source .venv/bin/activate\n"
    script = "source .venv/bin/activate; command -v tilewright"
    if not (ROOT / ".venv" / "bin" / "activate").exists():
        pytest.skip("the package was not installed by ./run")
    result = subprocess.run(["bash", "-ec", script], cwd=ROOT, capture_output=True, check=False)
    assert result.returncode == 0


def test_the_example_of_nvfp4():
    subprocess.run([sys.executable, ROOT / "examples" / "nvfp4.py"], check=True)


def anchors(page: pathlib.Path) -> set[str]:
    """Those that GitHub gives the page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page):
    text = re.sub(r"<!-- (\S+) begin -->.*?<!-- \1 end -->", "", page.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
