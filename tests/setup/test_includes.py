"""Which folder may include what: none includes upwards."""

import fnmatch
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
SOURCES = ("*.hpp", "*.cpp", "*.cuh", "*.cu", "*.in")

# Of each folder what it may include, the lowest first.
RULES = {
    "include/tilewright": ["tilewright/*"],
    "src/common": ["tilewright/*", "common/*"],
    "src/cuda/common": ["tilewright/*", "common/*", "cuda/common/*"],
    "src/cpu": ["tilewright/*", "common/*", "ops/*/params.hpp", "cpu/*"],
    # A kernel takes params and a plan; its row is written in the terms of the table.
    "src/cuda": ["tilewright/*", "common/*", "cuda/*", "ops/*/params.hpp", "ops/*/kernels.hpp",
                 "ops/plan.hpp", "ops/kernel_table.hpp"],
    # CUDA's runtime by one header, launchers by their operation's kernels.hpp.
    "src/ops": ["tilewright/*", "common/*", "ops/*", "cpu/cpu_*.hpp", "cuda/cuda_backend.hpp"],
}  # fmt: skip


def sources(folder):
    return [path for pattern in SOURCES for path in (ROOT / folder).rglob(pattern)]


@pytest.mark.parametrize("folder", RULES)
def test_no_folder_includes_upwards(folder, ran):
    wrong = [
        f"{path.relative_to(ROOT)} includes {name}"
        for path in ran(sources(folder), "files")
        for name in INCLUDE.findall(path.read_text())
        if not any(fnmatch.fnmatchcase(name, allowed) for allowed in RULES[folder])
    ]
    assert not wrong, "\n".join(wrong)


def test_no_rung_of_the_ladder_includes_another(ran):
    for path in ran(sources("src/cuda/attention/ladder"), "rungs"):
        names = INCLUDE.findall(path.read_text())
        assert not [name for name in names if "/ladder/" in name or "/flash/" in name], path
