"""The command line of tables and plots: python -m tilewright.plot --help"""

import argparse
import pathlib
import sys

import tilewright.plot
from tilewright._extras import needs
from tilewright.plot.accuracy import AccuracyResults, plot_accuracy
from tilewright.plot.decode import DecodeResults, plot_decode
from tilewright.plot.documents import PLOTS, outdated, plot_headlines, update
from tilewright.plot.dsv4 import Dsv4Results, plot_dsv4
from tilewright.plot.figures import plot
from tilewright.plot.gemm import GemmResults, plot_gemm
from tilewright.plot.results import Results

PLOTTED = ("attention-*.jsonl", "accuracy-*.jsonl", "decode-sweep.jsonl", "dsv4-*.jsonl",
           "gemm-*.jsonl")  # fmt: skip


def plot_file(path: pathlib.Path, folder: pathlib.Path) -> list[pathlib.Path]:
    """The plot of a results file, named like it."""
    results = Results.read(path)
    stem = folder / path.stem
    operation = results.lines[0]["operation"]
    if operation == "attention_with_kvcache":
        return plot_decode(DecodeResults(results.lines), stem)
    if operation == "dsv4_attention":
        return plot_dsv4(Dsv4Results(results.lines), stem)
    if operation == "attention_fp8" and "descale" in results.lines[0]["case"]:
        return plot_accuracy(AccuracyResults(results.lines), stem)
    if operation.startswith("gemm_"):
        return plot_gemm(GemmResults(results.lines), stem)
    return plot(results, stem)


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
        paths = plot_file(args.input, args.output_dir)
    elif args.check:
        paths = outdated(args.root)
    else:
        paths = update(args.root)
        for pattern in PLOTTED:
            for results in sorted((args.root / "results").glob(pattern)):
                paths += plot_file(results, args.root / PLOTS)
        paths += plot_headlines(args.root)
    for path in paths:
        print(f"{path} is not what results/ gives" if args.check else path)
    return 1 if args.check and paths else 0


if __name__ == "__main__":
    with needs("plot"):
        sys.exit(main())
