"""Checks what each kernel takes of the GPU, as ptxas reported it, against a budget.

  resources.py --kernels FOLDER [--output FILE] [--update] OBJECT...

Beside each object of a CUDA source lies OBJECT.ptxas, kept by cmake/nvcc_launcher.py. A kernel may
use no stack, spill nothing, and take at most its budget's registers and static shared memory. The
budget names every kernel and no other; kernel_files.py has its files. --update writes it from what
was compiled.
"""

import argparse
import json
import pathlib
import re
import sys

import kernel_files
from kernel_names import demangle

ENTRY = re.compile(r"Compiling entry function '(\w+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SMEM = re.compile(r"(\d+) bytes smem")

BUDGETED = ("registers", "smem_bytes")
FORBIDDEN = ("stack_bytes", "spill_bytes")


def parse_report(text: str) -> dict[str, dict[str, int]]:
    """The kernels of one ptxas report, by symbol; functions that are no kernels are left out."""
    kernels = {}
    for part in re.split(r"(?=Compiling entry function)", text)[1:]:
        symbol = ENTRY.search(part).group(1)
        stack, stores, loads = map(int, STACK.search(part).groups())
        used = re.search(r"Used \d+ registers.*", part).group()
        smem = SMEM.search(used)
        kernels[symbol] = {
            "registers": int(USED.search(used).group(1)),
            "stack_bytes": stack,
            "spill_bytes": stores + loads,
            "smem_bytes": int(smem.group(1)) if smem else 0,
        }
    return kernels


def read_reports(objects: list[pathlib.Path]) -> dict[str, dict[str, int]]:
    """All kernels of these objects, by readable name, in its order."""
    by_symbol = {}
    for path in objects:
        by_symbol |= parse_report(path.with_name(path.name + ".ptxas").read_text())
    names = demangle(by_symbol)
    return {names[s]: by_symbol[s] for s in sorted(by_symbol, key=names.get)}


def violations(kernels: dict[str, dict[str, int]], budget: dict[str, dict[str, int]]) -> list[str]:
    """What is wrong, one sentence each."""
    problems = [f"{name}: in the budget, but not compiled" for name in budget.keys() - kernels]
    for name, used in kernels.items():
        problems += [f"{name}: {key} is {used[key]}, must be 0" for key in FORBIDDEN if used[key]]
        if name not in budget:
            problems.append(f"{name}: compiled, but not in the budget")
            continue
        problems += [
            f"{name}: {key} is {used[key]}, its budget {budget[name][key]}"
            for key in BUDGETED
            if used[key] > budget[name][key]
        ]
    return sorted(problems)


def main() -> int:
    parser = argparse.ArgumentParser(description="Check kernels' resources against a budget.")
    parser.add_argument("objects", nargs="+", type=pathlib.Path, help="objects; .cu.o ones count")
    parser.add_argument("--kernels", required=True, type=pathlib.Path)
    parser.add_argument("--output", type=pathlib.Path, help="write what was found here, as JSON")
    parser.add_argument(
        "--update", action="store_true", help="write the budget from what was found"
    )
    args = parser.parse_args()

    kernels = read_reports([path for path in args.objects if path.name.endswith(".cu.o")])
    if not kernels:
        sys.exit("resources.py: no kernel in these objects")
    if args.output:
        args.output.write_text(json.dumps(kernels, indent=2) + "\n")
    if args.update:
        budget = {name: {key: used[key] for key in BUDGETED} for name, used in kernels.items()}
        kernel_files.write_budget(args.kernels, budget)

    width = max(map(len, kernels))
    for name, used in kernels.items():
        print(
            f"{name:{width}}  {used['registers']:3} registers  {used['smem_bytes']:6} B static smem"
        )
    problems = violations(kernels, kernel_files.read_part(args.kernels, "budget"))
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
