"""results/*.jsonl against results/schema.json, and the schema against bad lines."""

import copy
import json
import pathlib

import pytest
from jsonschema import Draft202012Validator

RESULTS = pathlib.Path(__file__).parents[2] / "results"
SCHEMA = json.loads((RESULTS / "schema.json").read_text())
VALIDATOR = Draft202012Validator(SCHEMA)

CASE = {
    "dtype": "bf16",
    "batch": 4,
    "q_len": 4096,
    "kv_len": 4096,
    "heads": 16,
    "kv_heads": 16,
    "head_dim": 128,
    "v_dim": 128,
    "causal": False,
}
GEMM_CASE = {
    "m": 16,
    "n": 4096,
    "k": 7168,
    "l": 1,
    "a_dtype": "bf16",
    "b_dtype": "nvfp4",
    "out_dtype": "bf16",
}
QUANTIZE_CASE = {
    "m": 8192,
    "k": 8192,
    "dtype": "bf16",
    "scale_layout": "linear",
    "global_scale": "computed",
    "global_scale_kind": "encode",
}
MEASURED = {
    "run": "2026-01-31T12:34:56Z 0123456789",
    "operation": "attention",
    "case": CASE,
    "impl": "tilewright/k4",
    "impl_version": "0123456789",
    "median_us": 1.5,
    "p10_us": 1.25,
    "p90_us": 2.0,
    "samples": 20,
    "tflops": 1.0,
    "gbps": 1.0,
    "cold_l2": True,
    "graph": False,
    "rel_fro_error": None,
    "max_abs_error": 0.01,
    "gpu": "NVIDIA H200",
    "driver": "580.1",
    "cuda": "13.0",
    "sm_clock_mhz": 1980,
    "power_w": 512.5,
    "supported": True,
}
UNSUPPORTED = {
    key: MEASURED[key]
    for key in ("run", "operation", "case", "impl", "impl_version", "gpu", "driver", "cuda")
} | {"supported": False, "reason": "q: has head_dim 96"}
KVCACHE = MEASURED | {
    "operation": "attention_with_kvcache",
    "case": CASE | {"q_len": 1, "cache_dtype": "bf16", "page_size": 0},
}
PROBED = {key: MEASURED[key] for key in UNSUPPORTED if key in MEASURED} | {
    "operation": "probe_accumulator",
    "case": {"dtype": "e4m3", "n": 8, "k": 64},
    "impl": "tilewright/wgmma_chain",
    "accumulator": {
        "bits": 24,
        "most_bits": 29,
        "bits_beside_c": 24,
        "bits_of_c": 24,
        "bits_of_sum": 24,
        "rounding": "nearest_even",
        "rounds_each_product": None,
    },
}
GEMM = MEASURED | {"operation": "gemm_nvfp4", "case": GEMM_CASE, "impl": "tilewright/nvfp4"}


def with_case(line, **changes):
    line = copy.deepcopy(line)
    line["case"] |= changes
    return line


def without(line, *keys):
    return {key: value for key, value in line.items() if key not in keys}


def without_case_key(line, key):
    return line | {"case": without(line["case"], key)}


def with_finding(**changes):
    return PROBED | {"accumulator": PROBED["accumulator"] | changes}


GOOD_LINES = {
    "measured": MEASURED,
    "unsupported": UNSUPPORTED,
    "on a CPU": MEASURED | dict.fromkeys(["driver", "cuda", "sm_clock_mhz", "power_w"]),
    "a window": with_case(MEASURED, window=[128, None]),
    "a soft cap and sinks": with_case(MEASURED, softcap=50.0, sinks=True),
    "with the LSE's error": MEASURED | {"lse_error": 1e-6},
    "packed sequences": with_case(MEASURED, batch=2, q_len=8, kv_len=8, lengths=[3, 5]),
    "a row of a kernel's table": MEASURED | {"impl": "tilewright/flash/11"},
    "a peer": MEASURED | {"impl": "fa3", "impl_version": "0.0.3"},
    "another operation": MEASURED | {"operation": "decode", "case": {"batch": 1}},
    "a KV cache": KVCACHE,
    "pages of unequal lengths": with_case(KVCACHE, page_size=16, kv_lens=[4096, 7]),
    "several new tokens each": with_case(KVCACHE, batch=2, q_len=4, q_lens=[1, 3], kv_lens=[5, 6]),
    "an E4M3 cache": with_case(KVCACHE, cache_dtype="e4m3", descale="head", batch_invariant=True),
    "a plain read": KVCACHE | {"impl": "plain_read", "impl_version": "1"},
    "a GEMM": GEMM,
    "a GEMM with weights that rotate": GEMM | {"cold_by": "rotation"},
    "a GEMM, batch-invariant": with_case(GEMM, batch_invariant=True),
    "a GEMM behind an RMSNorm": with_case(GEMM, rmsnorm=True),
    "a warm GEMM": GEMM | {"cold_l2": False, "cold_by": None},
    "an accumulator": PROBED,
    "quantising": MEASURED | {"operation": "quantize_nvfp4", "case": QUANTIZE_CASE},
}

BAD_LINES = {
    "no run": without(MEASURED, "run"),
    "a run without a time": MEASURED | {"run": "0123456789"},
    "no case": without(MEASURED, "case"),
    "no head_dim": without_case_key(MEASURED, "head_dim"),
    "a dtype of another spelling": with_case(MEASURED, dtype="bfloat16"),
    "a causal of 0": with_case(MEASURED, causal=0),
    "an empty batch": with_case(MEASURED, batch=0),
    "an empty list of lengths": with_case(MEASURED, lengths=[]),
    "a length of 0": with_case(MEASURED, lengths=[3, 0]),
    "a window of one side": with_case(MEASURED, window=[128]),
    "a soft cap of 0": with_case(MEASURED, softcap=0),
    "sinks that are off": with_case(MEASURED, sinks=False),
    "an LSE's error of null": MEASURED | {"lse_error": None},
    "unsupported with an LSE's error": UNSUPPORTED | {"lse_error": 1e-6},
    "a row without a number": MEASURED | {"impl": "tilewright/flash/"},
    "a KV cache without its dtype": without_case_key(KVCACHE, "cache_dtype"),
    "a KV cache without its page size": without_case_key(KVCACHE, "page_size"),
    "a KV cache without attention's sizes": without_case_key(KVCACHE, "kv_heads"),
    "a KV cache with packed keys": with_case(KVCACHE, lengths=[3, 5]),
    "a page size below 0": with_case(KVCACHE, page_size=-1),
    "no new tokens": with_case(KVCACHE, q_lens=[1, 0]),
    "a descale that is named though it is for all": with_case(KVCACHE, descale="tensor"),
    "a KV cache, not batch-invariant by name": with_case(KVCACHE, batch_invariant=False),
    "a GEMM without a dtype": without_case_key(GEMM, "a_dtype"),
    "a GEMM of no tokens": with_case(GEMM, m=0),
    "a GEMM, batch-invariant by text": with_case(GEMM, batch_invariant="yes"),
    "a GEMM behind another norm": with_case(GEMM, rmsnorm="layernorm"),
    "cold by another means": MEASURED | {"cold_by": "luck"},
    "unsupported and cold": UNSUPPORTED | {"cold_by": "flush"},
    "a gemm with attention's case": MEASURED | {"operation": "gemm_nvfp4"},
    "quantising with attention's case": MEASURED | {"operation": "quantize_nvfp4"},
    "an accumulator without findings": without(PROBED, "accumulator"),
    "an accumulator that was timed": PROBED | {"median_us": 1.0},
    "an accumulator of a rounding by luck": with_finding(rounding="luck"),
    "an accumulator of negative width": with_finding(bits=-1),
    "an accumulator without N": without_case_key(PROBED, "n"),
    "attention with an accumulator": MEASURED | {"accumulator": PROBED["accumulator"]},
    "an impl with spaces": MEASURED | {"impl": "flash attention"},
    "no median": without(MEASURED, "median_us"),
    "a time of 0": MEASURED | {"median_us": 0},
    "a time as text": MEASURED | {"median_us": "1.5"},
    "no samples": MEASURED | {"samples": 0},
    "no error fields": without(MEASURED, "rel_fro_error"),
    "a reason though it ran": MEASURED | {"reason": "why"},
    "no supported": without(MEASURED, "supported"),
    "unsupported without a reason": without(UNSUPPORTED, "reason"),
    "unsupported with a time": UNSUPPORTED | {"median_us": 1.0},
    "an unknown field": MEASURED | {"speed": 1},
    "no object": [MEASURED],
}


def test_the_schema_is_one():
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", GOOD_LINES)
def test_good_line(name):
    VALIDATOR.validate(GOOD_LINES[name])


@pytest.mark.parametrize("name", BAD_LINES)
def test_bad_line(name):
    assert not VALIDATOR.is_valid(BAD_LINES[name])


def test_every_results_file(ran):
    for path in ran(RESULTS.glob("*.jsonl"), "files"):
        lines = path.read_text().splitlines()
        assert lines, f"{path} is empty"
        for number, line in enumerate(lines, start=1):
            errors = [error.message for error in VALIDATOR.iter_errors(json.loads(line))]
            assert not errors, f"{path}:{number}: {errors}"


def test_caches_were_measured_as_servers_read_them():
    texts = [path.read_text() for path in RESULTS.glob("decode-*.jsonl")]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    measured = [
        line
        for line in lines
        if line["operation"] == "attention_with_kvcache" and line["supported"]
    ]
    if not measured:
        pytest.skip("there are no results of attention over KV caches")
    for line in measured:
        assert line["cold_by"] == "rotation" and line["graph"]
        assert line["impl"] == "plain_read" or line["rel_fro_error"] is not None


@pytest.mark.parametrize("pattern", ["gemm-*.jsonl", "*-nvfp4.jsonl"])
def test_gemms_were_measured_with_weights_from_memory(ran, pattern):
    for path in ran(RESULTS.glob(pattern), "files"):
        lines = map(json.loads, path.read_text().splitlines())
        for line in ran((line for line in lines if line["supported"]), path.name):
            assert line["cold_by"] == "rotation", path
            if path.stem.endswith("-nvfp4"):
                assert line["launches"] > 1, path
            assert line["rel_fro_error"] is not None, path
