"""Says function by function whether two builds' kernels are the same code.

  compare_sass.py BEFORE AFTER [--rename OLD=NEW]... [--json FILE]

BEFORE and AFTER are each a build folder or a file with device code: a library, an executable or an
object. Functions are the same where their SASS is, up to what normalised_sass.py leaves out: names,
and offsets in the constant banks. Their names are compared without parameters, once --rename has
replaced OLD by NEW in those of BEFORE. The exit status is 0 where every function is the same, under
its name or another one.
"""

import argparse
import collections
import functools
import hashlib
import json
import pathlib
import shutil
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import NamedTuple

import sass
from kernel_names import demangle
from normalised_sass import count_instructions, functions

# Gives a build's disassembly, from its first line at every call.
Build = Callable[[], Iterable[str]]


class Function(NamedTuple):
    name: str
    digest: str
    instructions: int
    index: int  # in its build's disassembly


class Comparison(NamedTuple):
    same: list[tuple[Function, Function]]
    renamed: list[tuple[Function, Function]]
    differ: list[tuple[Function, Function]]
    only_before: list[Function]
    only_after: list[Function]


def summarise(lines: Iterable[str]) -> list[Function]:
    found = [
        (symbol, hashlib.sha256("\n".join(code).encode()).hexdigest(), count_instructions(code))
        for symbol, code in functions(lines)
    ]
    names = demangle({symbol for symbol, _, _ in found})
    return [
        Function(names[symbol], digest, count, i) for i, (symbol, digest, count) in enumerate(found)
    ]


def take_pairs(
    before: list[Function], after: list[Function], key: Callable[[Function], Hashable]
) -> list[tuple[Function, Function]]:
    """Pairs those that have the same key, and removes them from both lists."""
    partners = collections.defaultdict(collections.deque)
    for function in after:
        partners[key(function)].append(function)
    pairs = [(one, partners[key(one)].popleft()) for one in before if partners[key(one)]]
    for one, other in pairs:
        before.remove(one)
        after.remove(other)
    return pairs


def pair(before: list[Function], after: list[Function]) -> Comparison:
    """By name and code, by name, by code. Several functions may have the same name."""
    before, after = list(before), list(after)
    same = take_pairs(before, after, lambda f: (f.name, f.digest))
    differ = take_pairs(before, after, lambda f: f.name)
    renamed = take_pairs(before, after, lambda f: f.digest)
    return Comparison(same, renamed, differ, before, after)


def difference(before: list[str], after: list[str]) -> dict[str, int | str]:
    """The first two lines that differ, how many instructions come before them, and how many lines
    are on one side only, wherever they stand."""
    lines = collections.Counter(before), collections.Counter(after)
    before, after = [*before, "the end"], [*after, "the end"]
    i = next(i for i, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1])
    return {
        "at": count_instructions(before[:i]),
        "before": before[i],
        "after": after[i],
        "lines_gone": (lines[0] - lines[1]).total(),
        "lines_new": (lines[1] - lines[0]).total(),
    }


def code_of(build: Build, differing: Iterable[Function]) -> dict[int, list[str]]:
    wanted = {function.index for function in differing}
    if not wanted:
        return {}
    return {i: code for i, (_, code) in enumerate(functions(build())) if i in wanted}


def compare(before: Build, after: Build, renames: list[tuple[str, str]]) -> dict[str, list]:
    """What is the same and what is not. Code that differs is disassembled a second time."""

    def rename(function: Function) -> Function:
        name = functools.reduce(lambda name, pair: name.replace(*pair), renames, function.name)
        return function._replace(name=name)

    found = pair([rename(f) for f in summarise(before())], summarise(after()))
    ones = code_of(before, (one for one, _ in found.differ))
    others = code_of(after, (other for _, other in found.differ))
    return {
        "same": [one.name for one, _ in found.same],
        "renamed": [{"before": one.name, "after": other.name} for one, other in found.renamed],
        "differ": [
            {
                "name": one.name,
                "instructions": {"before": one.instructions, "after": other.instructions},
                "difference": difference(ones[one.index], others[other.index]),
            }
            for one, other in found.differ
        ],
        "only_before": [function.name for function in found.only_before],
        "only_after": [function.name for function in found.only_after],
    }


def describe(found: dict[str, list]) -> Iterator[str]:
    for row in found["renamed"]:
        yield f"renamed: {row['before']} -> {row['after']}"
    for row in found["differ"]:
        counts, first = row["instructions"], row["difference"]
        yield f"differ: {row['name']}, {counts['before']} -> {counts['after']} instructions"
        yield f"  {first['lines_gone']} lines gone, {first['lines_new']} new; the first:"
        yield f"  {first['at']:6} - {first['before']}"
        yield f"         + {first['after']}"
    for kind in ("only_before", "only_after"):
        for name in found[kind]:
            yield f"{kind.replace('_', ' ')}: {name}"
    for kind, rows in found.items():
        yield f"{len(rows):6} {kind.replace('_', ' ')}"


def device_code(build: pathlib.Path) -> list[pathlib.Path]:
    """The files to disassemble: of a build folder its library, or objects where there is none."""
    if not build.is_dir():
        return [build]
    libraries = sorted(build.rglob("libtilewright.a"), key=lambda path: len(path.parts))
    return libraries[:1] or sorted(build.rglob("*.cu.o"))


def disassemble(cuobjdump: pathlib.Path, build: pathlib.Path) -> Iterator[str]:
    for path in device_code(build):
        yield from sass.disassemble(cuobjdump, path, "--gpu-architecture", "sm_90a")


def find_cuobjdump() -> pathlib.Path | None:
    """In PATH, in .venv, to which ./run setup brings it, or among CUDA's own programs."""
    root = pathlib.Path(__file__).parents[1]
    packages = root.glob(".venv/lib/python3*/site-packages/nvidia/cu13/bin")
    for folder in (None, *map(str, packages), "/usr/local/cuda/bin"):
        if program := shutil.which("cuobjdump", path=folder):
            return pathlib.Path(program)
    return None


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare two builds' kernels.")
    parser.add_argument("before", type=pathlib.Path)
    parser.add_argument("after", type=pathlib.Path)
    parser.add_argument("--rename", action="append", default=[], metavar="OLD=NEW")
    parser.add_argument("--json", type=pathlib.Path, help="write what was found here")
    parser.add_argument("--cuobjdump", type=pathlib.Path, default=find_cuobjdump())
    args = parser.parse_args()
    for rename in args.rename:
        if not rename.partition("=")[0] or "=" not in rename:
            parser.error(f"--rename is '{rename}', must be OLD=NEW")
    for build in (args.before, args.after):
        if not build.exists():
            parser.error(f"there is no {build}")
    if not args.cuobjdump:
        parser.error("cuobjdump is not in PATH, .venv or /usr/local/cuda: name it by --cuobjdump")
    return args


def main() -> int:
    args = parse_arguments()
    before, after = (
        functools.partial(disassemble, args.cuobjdump, build) for build in (args.before, args.after)
    )
    found = compare(before, after, [tuple(rename.split("=", 1)) for rename in args.rename])
    if not any(found.values()):
        sys.exit("compare_sass.py: no code for sm_90a in these builds")
    print("\n".join(describe(found)))
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    return 1 if any(found[kind] for kind in ("differ", "only_before", "only_after")) else 0


if __name__ == "__main__":
    sys.exit(main())
