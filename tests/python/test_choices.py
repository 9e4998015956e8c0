"""The configs that flash and nvfp4 take, against the times that were measured for each config."""

import collections
import json
import pathlib

import pytest

from tilewright._kernels import find_kernel, flash_variant_of, nvfp4_variant_of, problem_of

RESULTS = pathlib.Path(__file__).parents[2] / "results"
SLOWER_AT_MOST = 1.03
SLOWER_AT_MOST_IN_NVFP4 = 1.05  # its conditions are few

CASE = {
    "dtype": "bf16",
    "batch": 1,
    "q_len": 16384,
    "kv_len": 16384,
    "heads": 16,
    "kv_heads": 16,
    "head_dim": 128,
    "v_dim": 128,
    "causal": False,
}


PRODUCT = {
    "m": 16,
    "n": 8192,
    "k": 8192,
    "l": 1,
    "a_dtype": "bf16",
    "b_dtype": "nvfp4",
    "out_dtype": "bf16",
}


def slower_choices(lines, row_of=flash_variant_of, at_most=SLOWER_AT_MOST):
    """The cases in which a config is faster than the one that is taken, by more than `at_most`."""
    times = collections.defaultdict(dict)
    for line in lines:
        case = json.dumps(line["case"], sort_keys=True)
        times[case][line["impl"].removeprefix("tilewright/")] = line["median_us"]
    slower = []
    for case, rows in times.items():
        chosen = row_of(json.loads(case))
        fastest = min(rows, key=rows.get)
        if chosen not in rows:
            slower.append(f"{case}: {chosen} was not measured")
        elif rows[chosen] > at_most * rows[fastest]:
            ratio = rows[chosen] / rows[fastest]
            slower.append(f"{case}: {chosen} takes {ratio:.3f} times as long as {fastest}")
    return slower


@pytest.mark.parametrize(
    ("race", "row_of", "at_most"),
    [
        ("flash", flash_variant_of, SLOWER_AT_MOST),
        ("flash-fp16", flash_variant_of, SLOWER_AT_MOST),
        ("flash-packed", flash_variant_of, SLOWER_AT_MOST),
        ("nvfp4", nvfp4_variant_of, SLOWER_AT_MOST_IN_NVFP4),
    ],
)
def test_the_table_takes_the_fastest_row(ran, race, row_of, at_most):
    results = RESULTS / f"choices-{race}.jsonl"
    lines = ran(map(json.loads, results.read_text().splitlines()), "lines")
    slower = slower_choices(lines, row_of, at_most)
    assert not slower, "\n".join(slower)


@pytest.mark.parametrize(("median_us", "is_slower"), [(102.0, False), (104.0, True)])
def test_three_per_cent_are_allowed(median_us, is_slower):
    chosen = flash_variant_of(CASE)
    other = next(row.name for row in find_kernel("flash").variants if row.name != chosen)
    lines = [
        {"case": CASE, "impl": f"tilewright/{chosen}", "median_us": median_us},
        {"case": CASE, "impl": f"tilewright/{other}", "median_us": 100.0},
    ]
    assert bool(slower_choices(lines)) == is_slower
    assert "was not measured" in slower_choices(lines[1:])[0]


def test_nvfp4_adds_up_columns_apart_only_where_it_may():
    assert [row.name for row in find_kernel("nvfp4").variants] == [f"nvfp4/{i}" for i in range(12)]
    rows = {m: nvfp4_variant_of(PRODUCT | {"m": m}) for m in (1, 8, 9, 32, 64, 256, 4096)}
    assert rows[1] == rows[8] != rows[9]
    assert len(set(rows.values())) == 6
    assert nvfp4_variant_of(PRODUCT | {"batch_invariant": True}) != nvfp4_variant_of(PRODUCT)


def test_rows_are_narrower_than_flash():
    rows = {row.name: row for row in find_kernel("flash").variants}
    assert list(rows) == [f"flash/{i}" for i in range(len(rows))]
    assert rows[flash_variant_of(CASE)].limits["head_dim"] == "128"
    causal, packed = CASE | {"causal": True}, CASE | {"lengths": [8192, 8192]}
    for case in (causal, packed):
        assert rows[flash_variant_of(case)].takes("packed")


def test_a_case_that_flash_does_not_take_is_refused():
    with pytest.raises(ValueError, match="problem: is none that kernel flash takes"):
        flash_variant_of(CASE | {"head_dim": 80})
    with pytest.raises(ValueError, match="dtype: is 'int8'"):
        problem_of(CASE | {"dtype": "int8"})
