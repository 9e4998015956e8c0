"""What the races of attention over KV caches were to show, and what they do show."""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from statistics import geometric_mean

from tilewright.plot.decode import APART, DENSE, PREFIX, DecodeResults, KvCache
from tilewright.plot.goals import AT_LEAST, AT_MOST, Bound
from tilewright.plot.race_goals import RaceGoal

LARGE_BYTES = 200e6  # from which on memory's bandwidth alone counts
Values = Callable[[DecodeResults], Iterator[float | None]]


DecodeGoal = partial(RaceGoal, DecodeResults)


def _cases(results: DecodeResults, is_large: bool | None) -> Iterator[KvCache]:
    for case, size in results.bytes_of.items():
        if is_large is None or (size > LARGE_BYTES) == is_large:
            yield case


def to_best_peer(is_large: bool | None = None) -> Values:
    return lambda results: map(results.to_best_peer, _cases(results, is_large))


def to_plain_read(is_large: bool | None = None) -> Values:
    return lambda results: map(results.to_plain_read, _cases(results, is_large))


def shortest_us(results: DecodeResults) -> Iterator[float | None]:
    """Of one sequence of 1,024 keys."""
    for case in results.cases:
        if (case.batch, case.kv_len, case.q_len) == (1, 1024, 1):
            yield results.ours_us(case)


def of_e4m3(values: Values) -> Values:
    """The same of the cases with an E4M3 cache."""

    def of_results(results: DecodeResults) -> Iterator[float | None]:
        lines = [line for line in results.lines if line["case"]["cache_dtype"] == "e4m3"]
        return values(DecodeResults(lines))

    return of_results


def to_contiguous(*page_sizes: int) -> Values:
    """The time in pages of these sizes over that in contiguous caches."""

    def values(results: DecodeResults) -> Iterator[float | None]:
        for case in results.cases:
            if case.page_size in page_sizes:
                paged, whole = _both(results, case, page_size=0)
                yield paged / whole if paged and whole else None

    return values


def _both(results: DecodeResults, case: KvCache, **others: object) -> list[float | None]:
    """The times of ours in a case, and in the same with other fields."""
    return [results.ours_us(each) for each in (case, dataclasses.replace(case, **others))]


def ragged_to_even(results: DecodeResults) -> Iterator[float | None]:
    """The bandwidth of unequal lengths over that of equal ones."""
    speeds = {}
    for case, size in results.bytes_of.items():
        if ours := results.ours_us(case):
            speeds.setdefault((case.page_size, case.kv_heads), {})[bool(case.kv_lens)] = size / ours
    for pair in speeds.values():
        yield pair[True] / pair[False] if len(pair) == 2 else None


def e4m3_to_16_bits(is_large: bool | None) -> Values:
    """How many times as fast; of large cases those are large whose 16-bit caches are."""

    def values(results: DecodeResults) -> Iterator[float | None]:
        for case in _cases(results, is_large):
            if case.cache_dtype != "e4m3":
                wide, e4m3 = _both(results, case, cache_dtype="e4m3")
                yield wide / e4m3 if wide and e4m3 else None

    return values


def invariant_to_default(results: DecodeResults) -> Iterator[float | None]:
    for case in results.cases:
        if case.batch_invariant:
            invariant, default = _both(results, case, batch_invariant=False)
            yield default / invariant if default and invariant else None


def named_prefix_to_not(results: DecodeResults) -> Iterator[float | None]:
    """How many times as fast a call is that names the prefix."""
    for case in results.cases:
        if case.names_prefix:
            named, without = _both(results, case, names_prefix=False)
            yield without / named if named and without else None


def named_prefix_to_none(results: DecodeResults) -> Iterator[float | None]:
    """How many times as fast such a call is as one whose sequences share no keys."""
    for case in results.cases:
        if case.names_prefix:
            others = tuple(word for word in case.features if not word.startswith(PREFIX))
            named, without = _both(results, case, names_prefix=False, features=others)
            yield without / named if named and without else None


def chunk_to_dense(results: DecodeResults) -> Iterator[float | None]:
    """The time of a chunk over pages over that of the dense kernel."""
    for case in results.cases:
        dense = results.times_us.get((dataclasses.replace(case, page_size=0), DENSE))
        ours = results.ours_us(case)
        if case.page_size:
            yield ours / dense if ours and dense else None


def mixed_to_apart(results: DecodeResults) -> Iterator[float | None]:
    """The time of decode and prefill in one call over that of a call for each."""
    for case in results.cases:
        if case.q_lens:
            apart, ours = results.times_us.get((case, APART)), results.ours_us(case)
            yield ours / apart if ours and apart else None


GOALS = [
    DecodeGoal("Up to 200 MB: geometric mean, to best peer", "decode-sweep",
               Bound(AT_LEAST, 1.35), to_best_peer(False), geometric_mean),
    DecodeGoal("Up to 200 MB: least, to best peer", "decode-sweep",
               Bound(AT_LEAST, 1), to_best_peer(False), min),
    DecodeGoal("Above 200 MB: least, to best peer", "decode-sweep",
               Bound(AT_LEAST, 0.99), to_best_peer(True), min),
    DecodeGoal("Above 200 MB: least, to a plain read", "decode-sweep",
               Bound(AT_LEAST, 0.97), to_plain_read(True), min),
    DecodeGoal("Batch 1, 1024 keys: most µs", "decode-sweep",
               Bound(AT_MOST, 7, ".1f"), shortest_us, max),
    DecodeGoal("The same with an E4M3 cache", "decode-e4m3",
               Bound(AT_MOST, 6.5, ".1f"), of_e4m3(shortest_us), max),
    DecodeGoal("Pages of 64 and more: most, time to contiguous", "decode-pages",
               Bound(AT_MOST, 1.03), to_contiguous(64, 128, 256), max),
    DecodeGoal("Pages of 16: most, time to contiguous", "decode-pages",
               Bound(AT_MOST, 1.06), to_contiguous(16), max),
    DecodeGoal("Pages of 1: most, time to contiguous", "decode-pages",
               Bound(AT_MOST, 1.25), to_contiguous(1), max),
    DecodeGoal("Zipf's lengths: least, bandwidth to an even batch's", "decode-ragged",
               Bound(AT_LEAST, 0.92), ragged_to_even, min),
    DecodeGoal("E4M3 caches, above 200 MB in 16 bits: least, speed to 16 bits", "decode-e4m3",
               Bound(AT_LEAST, 1.85), e4m3_to_16_bits(True), min),
    DecodeGoal("E4M3 caches: least, speed to 16 bits", "decode-e4m3",
               Bound(AT_LEAST, 1), e4m3_to_16_bits(None), min),
    DecodeGoal("E4M3 caches: least, to best peer", "decode-e4m3",
               Bound(AT_LEAST, 1), of_e4m3(to_best_peer()), min),
    DecodeGoal("Batch-invariant: least, speed to the default", "decode-invariant",
               Bound(AT_LEAST, 0.9), invariant_to_default, min),
    DecodeGoal("Chunk of 2048 over pages: most, time to dense", "decode-chunks",
               Bound(AT_MOST, 1.05), chunk_to_dense, max),
    DecodeGoal("Chunk of 2048: least, to best peer", "decode-chunks",
               Bound(AT_LEAST, 1), to_best_peer(), min),
    DecodeGoal("Shared prefix of 8k: least, speed to the same not named", "decode-prefix",
               Bound(AT_LEAST, 10), named_prefix_to_not, min),
    DecodeGoal("The same: least, speed to sequences that share none", "decode-prefix",
               Bound(AT_LEAST, 10), named_prefix_to_none, min),
    DecodeGoal("Decode and chunks mixed: most, time to both apart", "decode-mixed",
               Bound(AT_MOST, 1), mixed_to_apart, max),
]  # fmt: skip
