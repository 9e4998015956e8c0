"""Types of command-line options that operations share."""

import argparse
from collections.abc import Callable, Collection

SWITCH = {"off": (False,), "on": (True,), "both": (False, True)}


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def head_dims(text: str) -> list[tuple[int, int]]:
    """Of Q and K, and of V where it differs: 128,192:128"""
    pairs = [dims.partition(":") for dims in text.split(",")]
    return [(int(qk), int(v or qk)) for qk, _, v in pairs]


def words_of(known: Collection[str]) -> Callable[[str], list[str]]:
    """Of some words of `known`, with commas between them."""

    def words(text: str) -> list[str]:
        for word in text.split(","):
            if word not in known:
                raise argparse.ArgumentTypeError(f"{word} is not one of {', '.join(known)}")
        return text.split(",")

    return words
