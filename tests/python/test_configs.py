"""The configs that flash and nvfp4 take, against the times that were measured for each config."""

import collections
import json
import pathlib

import pytest

from tilewright._kernels import find_kernel, flash_variant_of, nvfp4_variant_of, problem_of

RESULTS = pathlib.Path(__file__).parents[2] / "results"
SLOWER_AT_MOST = 1.03
SLOWER_AT_MOST_IN_NVFP4 = 1.05  # its table has few conditions

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


GEMM = {
    "m": 16,
    "n": 8192,
    "k": 8192,
    "l": 1,
    "a_dtype": "bf16",
    "b_dtype": "nvfp4",
    "out_dtype": "bf16",
}


def slower_configs(lines, variant_of=flash_variant_of, at_most=SLOWER_AT_MOST):
    """The cases in which the config that is taken needs over `at_most` times the fastest's time."""
    times = collections.defaultdict(dict)
    for line in lines:
        case = json.dumps(line["case"], sort_keys=True)
        times[case][line["impl"].removeprefix("tilewright/")] = line["median_us"]
    slower = []
    for case, times_us in times.items():
        taken = variant_of(json.loads(case))
        fastest = min(times_us, key=times_us.get)
        if taken not in times_us:
            slower.append(f"{case}: {taken} was not measured")
        elif times_us[taken] > at_most * times_us[fastest]:
            ratio = times_us[taken] / times_us[fastest]
            slower.append(f"{case}: {taken} takes {ratio:.3f} times as long as {fastest}")
    return slower


@pytest.mark.parametrize(
    ("race", "variant_of", "at_most"),
    [
        ("flash", flash_variant_of, SLOWER_AT_MOST),
        ("flash-fp16", flash_variant_of, SLOWER_AT_MOST),
        ("flash-packed", flash_variant_of, SLOWER_AT_MOST),
        ("nvfp4", nvfp4_variant_of, SLOWER_AT_MOST_IN_NVFP4),
    ],
)
def test_the_table_takes_the_fastest_config(ran, race, variant_of, at_most):
    results = RESULTS / f"configs-{race}.jsonl"
    lines = ran(map(json.loads, results.read_text().splitlines()), "lines")
    slower = slower_configs(lines, variant_of, at_most)
    assert not slower, "\n".join(slower)


@pytest.mark.parametrize(("median_us", "is_slower"), [(102.0, False), (104.0, True)])
def test_three_per_cent_are_allowed(median_us, is_slower):
    taken = flash_variant_of(CASE)
    names = [variant.name for variant in find_kernel("flash").variants]
    other = next(name for name in names if name != taken)
    lines = [
        {"case": CASE, "impl": f"tilewright/{taken}", "median_us": median_us},
        {"case": CASE, "impl": f"tilewright/{other}", "median_us": 100.0},
    ]
    assert bool(slower_configs(lines)) == is_slower
    assert "was not measured" in slower_configs(lines[1:])[0]


def test_nvfp4_takes_configs_by_m_and_others_where_it_is_batch_invariant():
    names = [variant.name for variant in find_kernel("nvfp4").variants]
    assert names == [f"nvfp4/{i}" for i in range(12)]
    taken = {m: nvfp4_variant_of(GEMM | {"m": m}) for m in (1, 8, 9, 32, 64, 256, 4096)}
    assert taken[1] == taken[8] != taken[9]
    assert len(set(taken.values())) == 6
    assert nvfp4_variant_of(GEMM | {"batch_invariant": True}) != nvfp4_variant_of(GEMM)


def test_variants_are_narrower_than_flash():
    variants = {variant.name: variant for variant in find_kernel("flash").variants}
    assert list(variants) == [f"flash/{i}" for i in range(len(variants))]
    assert variants[flash_variant_of(CASE)].limits["head_dim"] == "128"
    causal, packed = CASE | {"causal": True}, CASE | {"lengths": [8192, 8192]}
    for case in (causal, packed):
        assert variants[flash_variant_of(case)].takes("packed")


def test_a_case_that_flash_does_not_take_is_refused():
    with pytest.raises(ValueError, match="problem: is none that kernel flash takes"):
        flash_variant_of(CASE | {"head_dim": 80})
    with pytest.raises(ValueError, match="dtype: is 'int8'"):
        problem_of(CASE | {"dtype": "int8"})
