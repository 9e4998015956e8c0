"""The command line as a fixture, GPUs hidden from it."""

import os
import subprocess

import pytest


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


@pytest.fixture
def cli(binary, tmp_path):
    def run(*arguments, **environment):
        kept = {name: os.environ.get(name, "") for name in ("PATH", "LD_LIBRARY_PATH")}
        return subprocess.run(
            [binary, *map(str, arguments)],
            check=False,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=120,
            env=kept | {"CUDA_VISIBLE_DEVICES": ""} | environment,
        )

    return run
