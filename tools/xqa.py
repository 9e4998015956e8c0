#!/usr/bin/env python3
"""Builds FlashInfer's XQA kernels, whose wheel has them as source, for the race of decode.

    tools/xqa.py --wheels FOLDER --output LIBRARIES
    python -m tilewright.bench decode --xqa LIBRARIES

FOLDER has the wheels of flashinfer-python and apache-tvm-ffi. To load the libraries takes
apache-tvm-ffi alone.
"""

import argparse
import itertools
import os
import pathlib
import subprocess
import tempfile
import zipfile

FLAGS = ["-std=c++17", "-O3", "-use_fast_math", "-shared", "-Xcompiler", "-fPIC"]
FLAGS += ["--expt-relaxed-constexpr"]
FLAGS += ["-static-global-template-stub=false", "-w", "-gencode=arch=compute_90a,code=sm_90a"]
FLAGS += [f"-DFLASHINFER_ENABLE_{name}" for name in ("F16", "BF16", "FP8_E4M3", "FP8_E5M2")]
DEFINES = {"NDEBUG": 1, "BEAM_WIDTH": 1, "USE_INPUT_KV": 0, "USE_CUSTOM_BARRIER": 1}
DEFINES |= {"SLIDING_WINDOW": 0, "LOW_PREC_OUTPUT": 0, "SPEC_DEC": 0, "MLA_WRAPPER": 0}
OF_DTYPE = {
    "bf16": {"INPUT_FP16": 0, "DTYPE": "__nv_bfloat16"},
    "fp16": {"INPUT_FP16": 1, "DTYPE": "__half"},
}


def unpack(wheels: pathlib.Path, name: str, folder: str) -> str:
    """The version of the one wheel of that name."""
    (wheel,) = wheels.glob(f"{name}-*.whl")
    zipfile.ZipFile(wheel).extractall(folder)
    return wheel.name.split("-")[1]


def defines_of(dtype: str, cache_dtype: str, page_size: int, group: int, head_dim: int) -> dict:
    """The kernel with WGMMA is for E4M3 caches alone."""
    is_e4m3 = cache_dtype == "e4m3"
    sizes = {"TOKENS_PER_PAGE": page_size, "HEAD_GRP_SIZE": group, "HEAD_ELEMS": head_dim}
    kinds = {"CACHE_ELEM_ENUM": 2 if is_e4m3 else 0, "USE_SM90_MHA": int(is_e4m3)}
    return DEFINES | OF_DTYPE[dtype] | sizes | kinds


def build(sources: pathlib.Path, library: pathlib.Path, defines: dict) -> None:
    data = sources / "flashinfer/data"
    tvm = sources / "tvm_ffi"
    includes = [data / "include", data / "csrc", data / "cutlass/include", tvm / "include"]
    names = ["xqa/mha.cu", "xqa/xqa_wrapper.cu", "flashinfer_xqa_binding.cu"]
    names += ["xqa/mha_sm90.cu", "xqa/tensorMap.cpp"] if defines["USE_SM90_MHA"] else []
    command = ["nvcc", *FLAGS, *(f"-I{folder}" for folder in includes)]
    command += [f"-D{name}={value}" for name, value in defines.items()]
    command += [str(data / "csrc" / name) for name in names]
    command += [f"-L{tvm / 'lib'}", "-ltvm_ffi", "-lcuda", "-o", str(library)]
    subprocess.run(command, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--wheels", type=pathlib.Path, required=True, help="folder of both wheels")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="of the libraries")
    parser.add_argument("--dtype", choices=OF_DTYPE, default="bf16", help="of Q")
    parser.add_argument("--cache-dtype", nargs="+", help="default: --dtype and e4m3")
    parser.add_argument("--page-size", nargs="+", type=int, default=[16, 64, 128])
    parser.add_argument(
        "--group", nargs="+", type=int, default=[4, 32], help="query heads to a KV head"
    )
    parser.add_argument("--head-dim", type=int, default=128)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        version = unpack(args.wheels, "flashinfer_python", folder)
        unpack(args.wheels, "apache_tvm_ffi", folder)
        (args.output / "version").write_text(f"{version}\n")
        for cache_dtype, page_size, group in itertools.product(
            args.cache_dtype or [args.dtype, "e4m3"], args.page_size, args.group
        ):
            kind = (args.dtype, cache_dtype, page_size, group, args.head_dim)
            name = f"xqa_{'_'.join(map(str, kind))}.so"
            defines = defines_of(*kind)
            build(pathlib.Path(folder), args.output / name, defines)
            print(name)


if __name__ == "__main__":
    os.nice(5)
    main()
