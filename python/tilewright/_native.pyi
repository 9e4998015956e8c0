"""The compiled module: bindings.cpp, and bindings_*.cpp of the operations."""

from typing import Any

version: str
commit: str
nvfp4_weight_layout: int

def __getattr__(name: str) -> Any: ...
