"""Readable names of compiled kernels."""

import subprocess
from collections.abc import Iterable


def demangle(symbols: Iterable[str]) -> dict[str, str]:
    """Maps each symbol to its C++ name without parameters: "tilewright::k4::k4<128>"."""
    symbols = list(symbols)
    if not symbols:
        return {}
    result = subprocess.run(
        ["c++filt", "--no-params", *symbols], stdout=subprocess.PIPE, text=True, check=True
    )
    return dict(zip(symbols, result.stdout.splitlines(), strict=True))
