"""The command line of tables and plots: python -m tilewright.plot --help"""

import argparse
import pathlib
import sys

import tilewright.plot
from tilewright.plot.documents import outdated, update
from tilewright.plot.figures import plot
from tilewright.plot.results import Results


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tilewright.plot",
        description=tilewright.plot.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--root", type=pathlib.Path, default=pathlib.Path(), help="the repository (default: here)"
    )
    parser.add_argument("--check", action="store_true", help="write nothing, compare the tables")
    parser.add_argument("--input", type=pathlib.Path, help="plot this results file alone")
    parser.add_argument("--output-dir", type=pathlib.Path, help="where its plot goes")
    args = parser.parse_args(arguments)
    if (args.input is None) != (args.output_dir is None):
        parser.error("--input and --output-dir go together")

    if args.input:
        paths = plot(Results.read(args.input), args.output_dir / args.input.stem)
    elif args.check:
        paths = outdated(args.root)
    else:
        paths = update(args.root)
        for results in sorted((args.root / "results").glob("attention-*.jsonl")):
            paths += plot(Results.read(results), args.root / "docs/plots" / results.stem)
    for path in paths:
        print(f"{path} is not what results/ gives" if args.check else path)
    return 1 if args.check and paths else 0


if __name__ == "__main__":
    sys.exit(main())
