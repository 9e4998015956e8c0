"""Packages that only `python -m tilewright.bench` and `python -m tilewright.plot` need."""

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def needs(extra: str) -> Iterator[None]:
    """Ends the program with a line that names the remedy where a package of an extra is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        sys.exit(
            f"error: there is no {error.name}: pip install '.[{extra}]' in Tilewright's folder"
        )
