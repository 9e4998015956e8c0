"""What a race prints of each case: times, TFLOP/s, and the ratio to the best peer."""

from typing import Any

from tilewright.bench.peers import COPY, OURS, PLAIN_READ

HEADER = ("implementation", "median us", "TFLOP/s", "GB/s", "to best peer", "error")


def rows(lines: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """One case's lines as cells of HEADER's columns; the ratio is to the fastest peer."""
    peers = [line["tflops"] for line in lines if line["supported"] and _is_peer(line["impl"])]
    best_peer = max(peers, default=None)
    cells = []
    for line in lines:
        if not line["supported"]:
            cells.append((line["impl"], "-", "-", "-", "-", "-"))
            continue
        error = line["rel_fro_error"]
        cells.append(
            (
                line["impl"],
                f"{line['median_us']:.1f}",
                f"{line['tflops']:.4g}",
                f"{line['gbps']:.4g}",
                f"{line['tflops'] / best_peer:.3f}" if best_peer else "-",
                "-" if error is None else f"{error:.1e}",
            )
        )
    return cells


def _is_peer(impl: str) -> bool:
    return impl not in (PLAIN_READ, COPY) and not impl.startswith(f"{OURS}/")


def print_case(title: str, lines: list[dict[str, Any]]) -> None:
    """A table, through rich where it is installed, and the reasons of those that could not run."""
    body = rows(lines)
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        widths = [max(map(len, column)) for column in zip(HEADER, *body, strict=True)]
        print(title)
        for row in (HEADER, *body):
            print("  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)))
    else:
        table = Table(title=title)
        for name in HEADER:
            table.add_column(name, justify="left" if name == HEADER[0] else "right")
        for row in body:
            table.add_row(*row)
        Console().print(table)
    for line in lines:
        if not line["supported"]:
            print(f"{line['impl']}: {line['reason']}")
