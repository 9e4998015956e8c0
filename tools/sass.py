"""Checks that compiled kernels contain the instructions that they are about.

  sass.py --kernels FOLDER --cuobjdump PROGRAM OBJECT...

The folder's files name the instructions; see kernel_files.py.
"""

import argparse
import collections
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator

import kernel_files
from kernel_names import demangle

FUNCTION = re.compile(r"^\s*Function : (\w+)")
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?\w+\s+)?([A-Z][A-Z0-9_]*)")


def count_instructions(lines: Iterable[str]) -> dict[str, collections.Counter]:
    """Instructions of each function by mnemonic, without what follows its first dot."""
    functions: dict[str, collections.Counter] = {}
    current: collections.Counter = collections.Counter()
    for line in lines:
        if function := FUNCTION.match(line):
            current = functions.setdefault(function.group(1), collections.Counter())
        elif instruction := INSTRUCTION.match(line):
            current[instruction.group(1)] += 1
    return functions


def disassemble(cuobjdump: pathlib.Path, path: pathlib.Path, *options: str) -> Iterator[str]:
    """The lines of a file's disassembly, one at a time."""
    # cuobjdump starts nvdisasm, which lies beside it.
    programs = f"{cuobjdump.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    command = [cuobjdump, "--dump-sass", *options, path]
    environment = os.environ | {"PATH": programs}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        yield from process.stdout
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def violations(
    kernels: dict[str, collections.Counter], expected: dict[str, dict[str, int]]
) -> list[str]:
    """What is wrong, one sentence each."""
    problems = []
    for kernel, minimum in expected.items():
        instances = [name for name in kernels if name.split("<")[0] == kernel]
        if not instances:
            problems.append(f"{kernel}: not in these objects")
        problems += [
            f"{name}: {kernels[name][mnemonic]} {mnemonic}, must be at least {least}"
            for name in instances
            for mnemonic, least in minimum.items()
            if kernels[name][mnemonic] < least
        ]
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description="Check kernels' instructions.")
    parser.add_argument("objects", nargs="+", type=pathlib.Path, help="objects; .cu.o ones count")
    parser.add_argument("--kernels", required=True, type=pathlib.Path)
    parser.add_argument("--cuobjdump", required=True, type=pathlib.Path)
    args = parser.parse_args()

    by_symbol = {}
    for path in args.objects:
        if path.name.endswith(".cu.o"):
            by_symbol |= count_instructions(disassemble(args.cuobjdump, path))
    names = demangle(by_symbol)
    kernels = {names[symbol]: counts for symbol, counts in by_symbol.items()}
    expected = kernel_files.read_part(args.kernels, "instructions")

    for name, counts in sorted(kernels.items()):
        wanted = expected.get(name.split("<")[0], {})
        found = [f"{counts[mnemonic]} {mnemonic}" for mnemonic in wanted]
        print(f"{name}: {', '.join([f'{counts.total()} instructions', *found])}")
    problems = violations(kernels, expected)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
