"""Which folder may include what: none includes upwards."""

import fnmatch
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
SOURCES = ("*.hpp", "*.cpp", "*.cuh", "*.cu", "*.in")

# What any kernel may include: its operation's params, a plan, and what kernels share. Its row is
# written in the terms of the table.
SHARED = ["tilewright/*", "common/*", "cuda/common/*", "ops/*/params.hpp", "ops/*/kernels.hpp",
          "ops/plan.hpp", "ops/kernel_table.hpp"]  # fmt: skip

# Of each folder what it may include, the lowest first. Kernels include blocks, never kernels.
RULES = {
    "include/tilewright": ["tilewright/*"],
    "src/common": ["tilewright/*", "common/*"],
    "src/cuda/common": ["tilewright/*", "common/*", "cuda/common/*"],
    "src/cpu": ["tilewright/*", "common/*", "ops/*/params.hpp", "cpu/*"],
    "src/cuda/attention/blocks": ["tilewright/*", "common/*", "cuda/common/*", "ops/*/params.hpp",
                                  "cuda/attention/blocks/*"],
    "src/cuda/attention/ladder": [*SHARED, "cuda/attention/blocks/*"],
    "src/cuda/attention/flash": [*SHARED, "cuda/attention/blocks/*", "cuda/attention/flash/*"],
    # It leaves sequences to decode.
    "src/cuda/attention/prefill": [*SHARED, "cuda/attention/blocks/*", "cuda/attention/prefill/*",
                                   "cuda/attention/decode/launch.hpp",
                                   "cuda/attention/decode/plan.hpp"],
    "src/cuda": [*SHARED, "cuda/*"],
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
