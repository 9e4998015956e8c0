"""The build backend: scikit-build-core's, with CUTLASS's headers required where CUDA is built.

CUTLASS's wheel brings 340 MB of other packages, which serve its Python interface. A package for the
CPU alone is built without them.
"""

import os
import shutil

import scikit_build_core.build
from scikit_build_core.build import *  # all other hooks are scikit-build-core's own

CUTLASS = "nvidia-cutlass==4.2.0.0"


def get_requires_for_build_wheel(config_settings: dict | None = None) -> list[str]:
    requirements = scikit_build_core.build.get_requires_for_build_wheel(config_settings)
    return requirements + _cutlass(config_settings or {})


def get_requires_for_build_editable(config_settings: dict | None = None) -> list[str]:
    requirements = scikit_build_core.build.get_requires_for_build_editable(config_settings)
    return requirements + _cutlass(config_settings or {})


def _cutlass(config_settings: dict) -> list[str]:
    """CUTLASS, where TilewrightCompilers.cmake will look for it and find no other."""
    wanted = os.environ.get("TILEWRIGHT_CUDA", "AUTO")
    wanted = config_settings.get("cmake.define.TILEWRIGHT_CUDA", wanted)
    builds_cuda = wanted == "ON" or (wanted == "AUTO" and _has_nvcc(config_settings))
    return [CUTLASS] if builds_cuda and "CUTLASS_PATH" not in os.environ else []


def _has_nvcc(config_settings: dict) -> bool:
    if "CUDACXX" in os.environ or "cmake.define.CMAKE_CUDA_COMPILER" in config_settings:
        return True
    cuda_home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return bool(shutil.which("nvcc") or shutil.which(f"{cuda_home}/bin/nvcc"))
