"""Tables, plots and goals of DeepSeek-V4's attention, from results made up here and from a race."""

import pytest

from test_decode_plot import goals_of, page_with
from test_gemm_plot import table_of, write
from test_results import MEASURED, UNSUPPORTED
from tilewright.bench import __main__ as bench
from tilewright.plot import __main__ as plot
from tilewright.plot import dsv4_goals
from tilewright.plot.documents import rendered

CASE = {
    "dtype": "bf16", "batch": 128, "q_len": 1, "heads": 64,
    "window": 128, "window_rows": "e4m3_bf16", "window_page_size": 64,
    "compressed": 512, "compressed_rows": "e4m3_bf16", "compressed_page_size": 64,
    "compressed_keys": "list", "context": 4096, "sinks": True, "inverse_rope": False,
}  # fmt: skip
TIMES = {"tilewright/dsv4_decode": 20.0, "flash_mla": 42.0, "plain_read": 10.0}


def lines_of(times=TIMES, rows=None, **case):
    """Of one case."""
    case = CASE | case | (dict.fromkeys(("window_rows", "compressed_rows"), rows) if rows else {})
    line = MEASURED | {"operation": "dsv4_attention", "case": case}
    return [
        line | {"impl": impl, "median_us": time, "gbps": 1e3 / time} for impl, time in times.items()
    ]


def ours(time, **case):
    return lines_of({"tilewright/dsv4_decode": time}, **case)


@pytest.fixture
def root(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "docs/worklog").mkdir(parents=True)
    (tmp_path / "README.md").write_text("")
    page_with(tmp_path, "dsv4:dsv4-decode", "plot:dsv4-decode", "dsv4:later")
    return tmp_path


def test_a_race_beside_peers(root):
    (refused,) = (
        UNSUPPORTED | {"operation": "dsv4_attention", "impl": "flash_mla", "case": line["case"]}
        for line in ours(1.0, rows="bf16")
    )
    mixed = ours(9.0, window_rows="e4m3", compressed_rows="e2m1", inverse_rope=True)
    latent = lines_of(batch=1, compressed=8192, compressed_keys="range")
    write(root, lines_of() + ours(21.0, rows="bf16") + [refused] + mixed + latent, "dsv4-decode")
    text, table = table_of(root)
    impls = "`dsv4_decode` | `flash_mla` | `plain_read` | to best peer | to plain read"
    assert table == [
        f"| heads | keys | rows | batch | new tokens | {impls} |",
        "| --- |" + " ---: |" * 9,
        "| 64 | 128 + 512 | e4m3_bf16 | 128 | 1 | 20.0 | 42.0 | 10.0 | 2.100 | 0.500 |",
        "| 64 | 128 + 512 | bf16 | 128 | 1 | 21.0 | — | — | — | — |",
        "| 64 | 128 + 512 | e4m3, e2m1, inverse RoPE | 128 | 1 | 9.00 | — | — | — | — |",
        "| 64 | 128 + 8192 (range) | e4m3_bf16 | 1 | 1 | 20.0 | 42.0 | 10.0 | 2.100 | 0.500 |",
    ]
    assert "µs, medians. NVIDIA H200" in text and text.count("Not measured yet.") == 1
    assert "![dsv4-decode](../plots/dsv4-decode.svg)" in text


def test_the_plot(root):
    pytest.importorskip("matplotlib")
    sweep = [
        line
        for heads in (8, 64)
        for batch in (1, 8, 128)
        for line in lines_of(heads=heads, batch=batch)
    ]
    write(root, sweep + ours(5.0, inverse_rope=True), "dsv4-decode")
    assert plot.main(["--root", str(root)]) == 0
    svg = (root / "docs/plots/dsv4-decode.svg").read_text()
    for text in ("8 heads", "64 heads", "requests", "µs", "flash_mla", "plain_read"):
        assert text in svg


def test_goals_without_results(root):
    goals = goals_of(root, "dsv4-goals")
    assert len(goals) == len(dsv4_goals.GOALS) == 14
    assert all(cells[1:2] + cells[3:] == ["0", "—", "—"] for cells in goals.values())


def test_goals(root):
    lines = lines_of() + lines_of(TIMES | {"flash_mla": 33.0}, batch=32)
    lines += lines_of(TIMES | {"flash_mla": 32.0}, batch=8) + lines_of(batch=1)
    lines += lines_of(TIMES | {"flash_mla": 39.0}, q_len=2)
    lines += lines_of(TIMES | {"flash_mla": 19.0}, heads=128, compressed=1024, q_len=2, batch=64)
    lines += lines_of(TIMES | {"tilewright/dsv4_decode": 21.0}, heads=8)
    lines += ours(18.0, heads=32) + ours(19.0, heads=16, batch=1)
    lines += ours(19.0, rows="bf16") + ours(40.0, rows="bf16", batch=8)
    lines += ours(20.0, rows="e4m3") + ours(22.0, rows="e2m1")
    lines += ours(20.5, inverse_rope=True)
    latent = {"batch": 1, "compressed": 8192, "compressed_keys": "range"}
    lines += ours(11.5, **latent) + ours(15.0, heads=128, **latent)
    write(root, lines, "dsv4-decode")
    case = {"rows": 128, "dtype": "bf16", "format": "e2m1", "page_size": 64}
    rows = MEASURED | {"operation": "quantize_kv_rows", "case": case, "impl": "tilewright/hopper"}
    write(root, [rows | {"gbps": 90.0}, rows | {"gbps": 100.0, "impl": "copy"}],
          "quantize_kv_rows")  # fmt: skip
    reached = {name: (cells[1], *cells[3:]) for name, cells in goals_of(root, "dsv4-goals").items()}
    assert reached == {
        "Flash, batch 128: to FlashMLA": ("1", "2.100", "yes"),
        "Flash, batch 32: to FlashMLA": ("1", "1.650", "no"),
        "Flash, batch 1 and 8: least, to FlashMLA": ("2", "1.600", "yes"),
        "Flash, two tokens, batch 128: to FlashMLA": ("1", "1.950", "no"),
        "Pro, two tokens, batch 64: to FlashMLA": ("1", "0.950", "no"),
        "Every case: least, to FlashMLA": ("7", "0.950", "no"),
        "8 to 32 heads, batch 32 or more: least, to FlashMLA": ("1", "2.000", "no"),
        "8 to 32 heads: most, time to 64 heads": ("3", "1.050", "no"),
        "BF16 rows, batch 128: most, time to 584 bytes": ("1", "0.950", "yes"),
        "528 and 288 bytes: most, time to 584 bytes": ("2", "1.100", "no"),
        "HCA at 1M, 64 heads: µs": ("1", "11.5", "yes"),
        "HCA at 1M, 128 heads: µs": ("1", "15.0", "no"),
        "Inverse RoPE: most, time to without": ("1", "1.025", "yes"),
        "`quantize_kv_rows`: least, to a copy": ("1", "0.900", "yes"),
    }


def test_a_race_gives_a_table_and_a_plot(root):
    pytest.importorskip("matplotlib")
    pytest.importorskip("torch")
    path = root / "results/dsv4-decode.jsonl"
    small = ["dsv4", "--device=cpu", "--gap=0", "--samples=2", "--heads=8", "--keys", "128+512"]
    assert bench.main([*small, "--batch=1,2", "--peers=plain_read", f"--json={path}"]) == 0
    assert plot.main(["--root", str(root)]) == 0
    text = rendered(root, root / "docs/worklog/page.md")
    assert text.count("\n| 8 | 128 + 512 | e4m3_bf16 |") == 2 and "`plain_read`" in text
    assert (root / "docs/plots/dsv4-decode.svg").exists()
