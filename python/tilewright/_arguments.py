"""Checks of arguments that are no arrays, and of sizes that must be right before memory is taken.

Whatever else is wrong with a call, the compiled module says.
"""

import operator
from typing import Any

from tilewright._errors import invalid, wrong_type

_SIZE_LIMIT = 1 << 30
_WINDOW_LIMIT = 1 << 63


def flag(argument: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise wrong_type(argument, f"is {value!r}, must be True or False")
    return value


def window_sides(window_size: Any) -> tuple[int, int]:
    """(left, right), in keys; -1: no limit."""
    try:
        left, right = (operator.index(side) for side in window_size)
    except (TypeError, ValueError):
        message = f"is {window_size!r}, must be a pair of integers (left, right)"
        raise wrong_type("window_size", message) from None
    if not (-1 <= left < _WINDOW_LIMIT and -1 <= right < _WINDOW_LIMIT):
        message = f"is {window_size!r}, each must be at least 0 and less than 2^63, or -1: no limit"
        raise invalid("window_size", message)
    return left, right


def number(argument: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise wrong_type(argument, f"is {value!r}, must be a number") from None


def score_options(
    softmax_scale: Any, causal: Any, window_size: Any, softcap: Any
) -> dict[str, Any]:
    """What becomes of the product of a query and a key, as the compiled module takes it."""
    left, right = window_sides(window_size)
    return {
        "softmax_scale": None if softmax_scale is None else number("softmax_scale", softmax_scale),
        "causal": flag("causal", causal),
        "window_size_left": left,
        "window_size_right": right,
        "softcap": number("softcap", softcap),
    }


def kernel_name(kernel: Any) -> str:
    if kernel is not None and not isinstance(kernel, str):
        raise wrong_type("kernel", f"is {kernel!r}, must be a name of kernels() or None")
    return kernel or "auto"


def is_second(argument: str, value: Any, allowed: tuple[str, str]) -> bool:
    """Whether an option of two values has the second."""
    if value not in allowed:
        raise invalid(argument, f"is {value!r}, must be {allowed[0]!r} or {allowed[1]!r}")
    return value == allowed[1]


def size_of(argument: str, value: Any) -> int:
    """A size of a tensor."""
    try:
        size = operator.index(value)
    except TypeError:
        raise wrong_type(argument, f"is {value!r}, must be an integer") from None
    if not 1 <= size < _SIZE_LIMIT:
        raise invalid(argument, f"is {size}, must be at least 1 and less than 2^30")
    return size


def check_same(argument: str, what: str, size: int, of: str, expected: int) -> None:
    if size != expected:
        raise invalid(argument, f"{what} is {size}, must equal {of} {expected}")
