"""Types of command-line options that operations share."""

SWITCH = {"off": (False,), "on": (True,), "both": (False, True)}


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def head_dims(text: str) -> list[tuple[int, int]]:
    """Of Q and K, and of V where it differs: 128,192:128"""
    pairs = [dims.partition(":") for dims in text.split(",")]
    return [(int(qk), int(v or qk)) for qk, _, v in pairs]
