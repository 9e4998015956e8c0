"""The files of tests/resources/kernels, one for the kernels of each namespace of tilewright::cuda.

k4.json has two parts: "instructions", the least number of each instruction that every instance of a
kernel must contain, {"k4": {"HGMMA": 1}}; and "budget", the most that an instance may take of the
GPU, {"k4<64>": {"registers": 168, "smem_bytes": 0}}.
"""

import collections
import json
import pathlib

PREFIX = "tilewright::cuda::"


def read_part(folder: pathlib.Path, part: str) -> dict[str, dict[str, int]]:
    """One part of all files, by the kernels' full names."""
    return {
        f"{PREFIX}{path.stem}::{name}": values
        for path in sorted(folder.glob("*.json"))
        for name, values in json.loads(path.read_text())[part].items()
    }


def write_budget(folder: pathlib.Path, budget: dict[str, dict[str, int]]) -> None:
    """Writes a budget by the kernels' full names. Instructions stay as they are."""
    by_namespace = collections.defaultdict(dict)
    for kernel, values in budget.items():
        namespace, _, name = kernel.removeprefix(PREFIX).partition("::")
        by_namespace[namespace][name] = values
    for path in folder.glob("*.json"):
        if path.stem not in by_namespace:
            path.unlink()
    for namespace, instances in by_namespace.items():
        path = folder / f"{namespace}.json"
        instructions = json.loads(path.read_text())["instructions"] if path.exists() else {}
        parts = {"instructions": instructions, "budget": instances}
        path.write_text("{\n" + ",\n".join(map(_part_text, parts, parts.values())) + "\n}\n")


def _part_text(part: str, values: dict[str, dict[str, int]]) -> str:
    lines = [f"    {json.dumps(name)}: {json.dumps(each)}" for name, each in values.items()]
    return f"  {json.dumps(part)}: " + ("{\n" + ",\n".join(lines) + "\n  }" if lines else "{}")
