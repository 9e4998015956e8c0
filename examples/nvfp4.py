"""NVFP4 weights on NumPy's arrays: quantise, dequantise, change the scales' layout, pack, multiply.

Each line that is printed has been checked; the program fails where a check does not hold.
"""

import numpy as np

import tilewright

TOKENS, ROWS, COLUMNS = 16, 512, 1024


def relative_error(values: np.ndarray, exact: np.ndarray) -> float:
    exact = exact.astype(np.float64)
    return float(np.linalg.norm(values.astype(np.float64) - exact) / np.linalg.norm(exact))


def check(what: str, error: float, limit: float) -> None:
    print(f"{what:<40} relative error {error:.1e}")
    if not error <= limit:
        raise SystemExit(f"{what}: the relative error is {error}, must be at most {limit}")


def main() -> None:
    random = np.random.default_rng(0)
    weight = random.standard_normal((ROWS, COLUMNS), dtype=np.float32)
    a = random.standard_normal((TOKENS, COLUMNS), dtype=np.float32).astype(np.float16)

    codes, scales, g = tilewright.quantize_nvfp4(weight, global_scale_kind="encode")
    rounded = tilewright.dequantize_nvfp4(codes, scales, g, global_scale_kind="encode")
    check("quantised and dequantised", relative_error(rounded, weight), 0.12)

    swizzled = tilewright.swizzle_scales(scales)
    linear = tilewright.unswizzle_scales(swizzled, ROWS, COLUMNS // 16)
    check("scales swizzled and back", relative_error(linear, scales), 0)

    packed = tilewright.prepack_nvfp4_weight(codes, scales)
    unpacked, _ = tilewright.unpack_nvfp4_weight(packed, ROWS, COLUMNS)
    check("packed and unpacked", relative_error(unpacked, codes), 0)

    exact = a.astype(np.float64) @ rounded.T.astype(np.float64)
    options = {"global_scale_b": g, "global_scale_b_kind": "encode", "dtype": "float32"}
    y = tilewright.gemm_nvfp4(a, codes, scales, **options)
    check("GEMM with codes and scales", relative_error(y, exact), 1e-6)
    y = tilewright.gemm_nvfp4(a, packed, n=ROWS, **options)
    check("GEMM with the packed weight", relative_error(y, exact), 1e-6)


if __name__ == "__main__":
    main()
