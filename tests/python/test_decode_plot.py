"""Tables and plots of attention over KV caches, from results made up here and from a race."""

import json

import pytest

from test_gemm_plot import table_of, write
from test_results import KVCACHE, UNSUPPORTED, with_case
from tilewright.bench import __main__ as bench
from tilewright.plot import __main__ as plot
from tilewright.plot import decode_goals
from tilewright.plot.decode import DecodeResults
from tilewright.plot.documents import rendered

TIMES = {"tilewright/decode": 10.0, "plain_read": 8.0, "fa3": 20.0, "cudnn": 15.0}


def lines_of(times=TIMES, megabytes=1.0, **case):
    """Of one case."""
    return [
        with_case(
            KVCACHE | {"impl": impl, "median_us": time, "gbps": megabytes / time * 1e3}, **case
        )
        for impl, time in times.items()
    ]


def page_with(root, *names):
    text = "".join(f"<!-- {name} begin -->\n<!-- {name} end -->\n" for name in names)
    (root / "docs/worklog/page.md").write_text(text)


@pytest.fixture
def root(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "docs/worklog").mkdir(parents=True)
    (tmp_path / "README.md").write_text("")
    page_with(tmp_path, "decode:decode-sweep", "plot:decode-sweep", "decode:later")
    return tmp_path


def test_a_race_beside_peers(root):
    ragged = lines_of(page_size=16, q_len=5, q_lens=[1, 1, 1, 2], kv_lens=[4096, 7, 8, 9])
    refused = with_case(
        UNSUPPORTED | {"operation": KVCACHE["operation"], "impl": "fa3", "case": KVCACHE["case"]},
        batch=8,
    )
    alone = lines_of({"tilewright/decode": 5.0}, batch=8)
    features = lines_of({"tilewright/decode": 12.0}, window=[9, None], sinks=True, v_dim=64,
                        cache_dtype="e4m3", descale="head", batch_invariant=True)  # fmt: skip
    write(root, [*lines_of(), *ragged, *alone, refused, *features], "decode-sweep")
    text, table = table_of(root)
    header = "heads of Q, K | head dim | batch | new tokens | keys | cache"
    impls = "`decode` | `plain_read` | `fa3` | `cudnn` | to best peer | to plain read"
    rule = "| --- |" + " ---: |" * 11
    times = "10.0 | 8.00 | 20.0 | 15.0 | 1.500 | 0.800"
    cache = "e4m3, window 9, sinks, a descale a head, batch-invariant"
    assert table == [
        f"| {header} | {impls} |",
        rule,
        f"| 16, 16 | 128 | 4 | 1 | 4096 | bf16 | {times} |",
        f"| 16, 16 | 128 | 4 | 1 to 2 | 7 to 4096 | bf16, pages of 16 | {times} |",
        "| 16, 16 | 128 | 8 | 1 | 4096 | bf16 | 5.00 | — | — | — | — | — |",
        f"| 16, 16 | 128 (V 64) | 4 | 1 | 4096 | {cache} | 12.0 | — | — | — | — | — |",
    ]
    assert "µs, medians. NVIDIA H200, driver 580.1, CUDA 13.0; run 2026-01-31" in text
    assert "![decode-sweep](../plots/decode-sweep.svg)\n" in text
    assert text.count("Not measured yet.") == 1


def test_without_others_there_is_no_ratio(root):
    write(root, lines_of({"tilewright/decode": 5.0}), "decode-sweep")
    _, table = table_of(root)
    assert table[0].endswith("| cache | `decode` |")


def test_the_dense_kernel_is_neither_ours_nor_a_peer():
    results = DecodeResults(lines_of(TIMES | {"tilewright/attention": 1.0}))
    (case,) = results.cases
    assert results.ours == ["decode"] and results.peers == ["fa3", "cudnn"]
    assert results.to_best_peer(case) == 1.5


def test_the_plot(root):
    pytest.importorskip("matplotlib")
    sweep = [
        line
        for kv_heads in (8, 1)
        for batch in (1, 8)
        for kv_len in (1024, 8192)
        for line in lines_of(TIMES, batch * kv_len / 1e3, kv_heads=kv_heads, heads=32, batch=batch,
                             kv_len=kv_len)
    ]  # fmt: skip
    write(root, sweep, "decode-sweep")
    assert plot.main(["--root", str(root)]) == 0
    stem = root / "docs/plots/decode-sweep"
    svg = stem.with_suffix(".svg").read_text()
    assert stem.with_suffix(".png").exists()
    for text in ("32 query heads, 8 of K and V", "32 query heads, 1 of K and V", "MB of K, V, Q",
                 "plain_read", "fa3", "GB/s"):  # fmt: skip
        assert text in svg
    assert plot.main(["--root", str(root)]) == 0
    assert stem.with_suffix(".svg").read_text() == svg


def goals_of(root, name="decode-goals"):
    page_with(root, f"{name}:results")
    _, table = table_of(root)
    rows = [row.strip("| ").split(" | ") for row in table[2:]]
    return {row[0]: row[1:] for row in rows}


def test_goals_without_results(root):
    goals = goals_of(root)
    assert len(goals) == len(decode_goals.GOALS) == 19
    assert all(cells[1:2] + cells[3:] == ["0", "—", "—"] for cells in goals.values())


def test_goals_of_the_sweep(root):
    first = lines_of(TIMES | {"tilewright/decode": 7.5}, 4.0, batch=1, kv_len=1024)
    small = lines_of(TIMES | {"tilewright/decode": 10.0}, 200.0, batch=8)
    large = lines_of(TIMES | {"tilewright/decode": 16.0}, 201.0, batch=16)
    larger = lines_of(TIMES | {"tilewright/decode": 8.1}, 900.0, batch=128)
    write(root, first + small + large + larger, "decode-sweep")
    goals = goals_of(root)
    mean = f"{(2.0 * 1.5) ** 0.5:.3f}"
    assert goals["Up to 200 MB: geometric mean, to best peer"] == [
        "`decode-sweep`", "2", "at least 1.35", mean, "yes"
    ]  # fmt: skip
    assert goals["Up to 200 MB: least, to best peer"][1:] == ["2", "at least 1", "1.500", "yes"]
    assert goals["Above 200 MB: least, to best peer"][1:] == ["2", "at least 0.99", "0.938", "no"]
    assert goals["Above 200 MB: least, to a plain read"][3:] == ["0.500", "no"]
    assert goals["Batch 1, 1024 keys: most µs"][1:] == ["1", "at most 7", "7.5", "no"]


def test_goals_of_the_other_races(root):
    def ours(time, megabytes=1.0, **case):
        return lines_of({"tilewright/decode": time}, megabytes, **case)

    paged = {0: 10.0, 256: 10.1, 64: 10.2, 16: 10.7, 1: 12.0}
    write(root, [line for size, time in paged.items() for line in ours(time, page_size=size)],
          "decode-pages")  # fmt: skip
    ragged = ours(10.0, 9.0, kv_lens=[1, 4096]) + ours(10.0, 10.0)
    write(root, ragged, "decode-ragged")
    wide = {"batch": 1, "kv_len": 1024}
    e4m3 = lines_of(TIMES | {"tilewright/decode": 6.0}, 2.0, cache_dtype="e4m3", **wide)
    large = ours(100.0, 300.0) + ours(52.0, 150.0, cache_dtype="e4m3")
    write(root, ours(6.6, 4.0, **wide) + e4m3 + large, "decode-e4m3")
    write(root, ours(9.0) + ours(10.0, batch_invariant=True), "decode-invariant")
    prefix = {"batch": 64, "page_size": 64, "shared_prefix": 8192}
    own = ours(500.0, batch=64, page_size=64)
    both = ours(300.0, **prefix) + ours(25.0, names_prefix=True, **prefix)
    write(root, own + both, "decode-prefix")
    dense = lines_of(TIMES | {"tilewright/attention": 9.0}, q_len=2048)
    write(root, dense + lines_of(q_len=2048, page_size=64), "decode-chunks")
    apart = lines_of(TIMES | {"tilewright/decode": 9.3, "tilewright/apart": 9.0},
                     q_lens=[1, 512], q_len=513)  # fmt: skip
    write(root, ours(4.0, batch=60) + apart, "decode-mixed")
    reached = {name: (cells[1], *cells[3:]) for name, cells in goals_of(root).items()}
    assert reached == reached | {
        "Pages of 64 and more: most, time to contiguous": ("2", "1.020", "yes"),
        "Pages of 16: most, time to contiguous": ("1", "1.070", "no"),
        "Pages of 1: most, time to contiguous": ("1", "1.200", "yes"),
        "Zipf's lengths: least, bandwidth to an even batch's": ("1", "0.900", "no"),
        "The same with an E4M3 cache": ("1", "6.0", "yes"),
        "E4M3 caches, above 200 MB in 16 bits: least, speed to 16 bits": ("1", "1.923", "yes"),
        "E4M3 caches: least, speed to 16 bits": ("2", "1.100", "yes"),
        "E4M3 caches: least, to best peer": ("1", "2.500", "yes"),
        "Batch-invariant: least, speed to the default": ("1", "0.900", "yes"),
        "Chunk of 2048 over pages: most, time to dense": ("1", "1.111", "no"),
        "Chunk of 2048: least, to best peer": ("2", "1.500", "yes"),
        "Shared prefix of 8k: least, speed to the same not named": ("1", "12.000", "yes"),
        "The same: least, speed to sequences that share none": ("1", "20.000", "yes"),
        "Decode and chunks mixed: most, time to both apart": ("1", "1.033", "no"),
    }


def test_a_race_gives_a_table_and_a_plot(root):
    pytest.importorskip("matplotlib")
    path = root / "results/decode-sweep.jsonl"
    arguments = ["decode", "--device=cpu", "--heads=4", "--kv-heads=2,1", "--headdim=32", "--gap=0"]
    arguments += ["--samples=2", "--batch=1,2", "--kv-seqlen=20,50", f"--json={path}"]
    assert bench.main(arguments) == 0
    impls = dict.fromkeys(json.loads(line)["impl"] for line in path.read_text().splitlines())
    assert plot.main(["--root", str(root)]) == 0
    text = rendered(root, root / "docs/worklog/page.md")
    assert text.count("\n| 4, 2 | 32 |") == text.count("\n| 4, 1 | 32 |") == 4
    assert all(f"`{impl.removeprefix('tilewright/')}`" in text for impl in impls)
    assert (root / "docs/plots/decode-sweep.svg").exists()
