"""Numbers and tables in Markdown."""


def number(value: float | None) -> str:
    """Three significant digits, as few characters as that takes."""
    if value is None:
        return "—"
    if value >= 1e6:
        return f"{value:.2e}"
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def ratio(value: float | None) -> str:
    """Three decimals: where two are level, per mille tell who is ahead."""
    return "—" if value is None else f"{value:.3f}"


def markdown(header: list[str], body: list[list[str]], left_columns: int = 1) -> str:
    rule = ["---"] * left_columns + ["---:"] * (len(header) - left_columns)
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *body])
