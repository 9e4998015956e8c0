"""The command line as a fixture, GPUs hidden from it."""

import json
import os
import pathlib
import subprocess

import pytest

KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "ASAN_OPTIONS", "LSAN_OPTIONS", "UBSAN_OPTIONS")


@pytest.fixture(scope="session")
def binary():
    path = os.environ.get("TILEWRIGHT_CLI")
    if path is None and "TILEWRIGHT_BUILD_DIR" in os.environ:
        path = os.path.join(os.environ["TILEWRIGHT_BUILD_DIR"], "cli", "tilewright")
    if path is None:
        pytest.fail("set TILEWRIGHT_CLI to the tilewright binary, or TILEWRIGHT_BUILD_DIR")
    if not os.access(path, os.X_OK):
        pytest.fail(f"there is no program at {path}")
    return path


@pytest.fixture(scope="session")
def address_space_limit(binary):
    """A shell command that limits it; AddressSanitizer cannot live with one."""
    if b"__asan_init" in pathlib.Path(binary).read_bytes():
        pytest.skip("AddressSanitizer reserves more address space than a limit would leave")
    return "ulimit -v {kib}".format


@pytest.fixture(scope="session")
def kernels_of(binary):
    """kernels_of(operation, ...): what `tilewright list --json` says of their kernels."""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    listed = subprocess.run(
        [binary, "list", "--json"], check=True, capture_output=True, text=True, env=environment
    )
    kernels = json.loads(listed.stdout)

    def find(*operations):
        found = [kernel for kernel in kernels if kernel["operation"] in operations]
        assert found, f"there are no kernels of {operations}"
        return found

    return find


@pytest.fixture
def cli(binary, tmp_path):
    """Runs it, after a shell command `before`; keywords are environment variables."""

    def run(*arguments, before="true", **environment):
        kept = {name: os.environ.get(name, "") for name in KEPT_VARIABLES}
        return subprocess.run(
            ["bash", "-c", f'{before} && exec "$@"', "bash", binary, *map(str, arguments)],
            check=False,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=120,
            env=kept | {"CUDA_VISIBLE_DEVICES": ""} | environment,
        )

    return run
