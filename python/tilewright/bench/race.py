"""One case's race: check every entrant, then time them in turn, round by round."""

import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.bench.case import Case, Errors
from tilewright.bench.peers import Peer
from tilewright.bench.timing import Timing

MIN_SAMPLES = 3  # even of a kernel that is slower than --max-seconds allows
ROUNDS_A_READING = 5  # of clock and power
WARM_UP_CALLS = 4  # or fewer, once they have taken WARM_UP_S
WARM_UP_S = 0.2
QUEUED_S = 0.1  # of launches behind one head start


@dataclass
class Entrant:
    """A peer in one case: what it will call, or why it does not race."""

    peer: Peer
    reason: str | None = None
    failed: bool = False  # its result was wrong, or it is ours and raised an error
    call: Callable[[], Any] | None = None
    errors: Errors | None = None
    timing: Timing | None = None
    launches: int = 1  # how many to ask for at a time


@dataclass(frozen=True)
class Rules:
    samples: int
    gap_s: float
    max_seconds: float
    check: bool
    seed: int


def warm_up(peers: list[Peer], cases: list[Case]) -> None:
    """An error here shows again in the case that it belongs to, and is reported there."""
    for peer in peers:
        try:
            peer.warm_up([case for case in cases if peer.supports(case) is None])
        except Exception as error:  # noqa: BLE001  whatever its library raises
            print(f"warming up {peer.name}: {type(error).__name__}: {error}", file=sys.stderr)


def _prepare(peer: Peer, case: Case, inputs: Any, timer: Any, check: bool) -> Entrant:
    """Makes it warm: first calls compile, load, allocate, and wake threads."""
    entrant = Entrant(peer, reason=peer.supports(case))
    if entrant.reason:
        return entrant
    try:
        call = peer.prepare(case, inputs)
        start = time.perf_counter()
        for _ in range(WARM_UP_CALLS):
            last_start = time.perf_counter()
            output = call()
            timer.synchronize()
            last_s = time.perf_counter() - last_start
            if time.perf_counter() - start > WARM_UP_S:
                break
        if check and peer.is_answer:
            entrant.errors = case.errors(inputs, output, peer.lse(case, inputs))
            entrant.reason = _what_is_wrong(entrant.errors, peer, case, inputs)
            entrant.failed = entrant.reason is not None
            if entrant.failed:
                return entrant
        launches = max(1, min(timer.launches, int(QUEUED_S / last_s)))
        entrant.call, entrant.launches = timer.prepare(call, launches)
    except Exception as error:  # noqa: BLE001  whatever its library raises, the others still race
        entrant.reason = f"{type(error).__name__}: {error}"
        entrant.failed = peer.is_ours
        return entrant
    entrant.timing = Timing(entrant.launches if timer.has_series else 1)
    return entrant


def _what_is_wrong(errors: Errors, peer: Peer, case: Case, inputs: Any) -> str | None:
    """Peers' LSEs are recorded, whatever they are."""
    limit = case.error_limit(inputs, peer.is_ours)
    if not errors.rel_fro <= limit:
        return f"wrong result: relative error {errors.rel_fro:.5g}, must be at most {limit:.5g}"
    if peer.is_ours and errors.lse is not None and not errors.lse <= case.lse_limit:
        return f"wrong LSE: error {errors.lse:.5g}, must be at most {case.lse_limit:.5g}"
    return None


def race(peers: list[Peer], case: Case, timer: Any, machine: Any, rules: Rules) -> list[Entrant]:
    """All peers' entrants, in the order of `peers`; those that ran have a timing."""
    inputs = case.make_inputs(rules.seed)
    entrants = [_prepare(peer, case, inputs, timer, rules.check) for peer in peers]
    running = [entrant for entrant in entrants if entrant.call]
    samples_a_round = 1 if timer.has_series else timer.launches
    for round_index in range(math.ceil(rules.samples / samples_a_round)):
        if round_index >= MIN_SAMPLES:
            running = [e for e in running if e.timing.total_s <= rules.max_seconds]
        if not running:
            break
        time.sleep(rules.gap_s if round_index else 0)
        for place in order_of(round_index, len(running)):
            is_read = round_index % ROUNDS_A_READING == 0
            _take_sample(running[place], timer, machine if is_read else None)
    return entrants


def order_of(round_index: int, count: int) -> list[int]:
    """Williams' design, a balanced Latin square: within 2 * count rounds, each entrant is equally
    often in each place, and equally often behind each other one. What an entrant leaves to the next
    is the GPU's temperature, and its clock where power is the limit."""
    zigzag = [i // 2 if i % 2 == 0 else count - 1 - i // 2 for i in range(count)]
    order = [(place + round_index) % count for place in zigzag]
    return order[::-1] if round_index // count % 2 else order


def _take_sample(entrant: Entrant, timer: Any, machine: Any) -> None:
    timing = entrant.timing
    read = machine.read if machine else lambda: None
    samples_us, reading = timer.sample(entrant.call, read, entrant.launches)
    timing.samples_us += samples_us
    if reading:
        timing.clocks_mhz.append(reading[0])
        timing.powers_w.append(reading[1])


def rounded(value: float) -> float:
    """A measured number with as many digits as mean something."""
    return float(f"{value:.6g}")


def identity(peer: Peer, case: Case, machine: Any) -> dict[str, Any]:
    """What a line of a results file says of who did what, and on which device."""
    return {
        "operation": case.operation,
        "case": case.to_json(),
        "impl": peer.name,
        "impl_version": peer.version,
        "gpu": machine.description["gpu"],
    }


def to_line(entrant: Entrant, case: Case, run: str, timer: Any, machine: Any) -> dict[str, Any]:
    """A line of a results file."""
    line = {"run": run} | identity(entrant.peer, case, machine) | machine.description
    timing = entrant.timing
    if timing is None:
        return line | {"supported": False, "reason": entrant.reason}
    if setup := entrant.peer.setup(case):
        line["setup"] = setup
    p10_us, p90_us = timing.p10_p90_us
    errors = entrant.errors
    return line | {
        "median_us": rounded(timing.median_us),
        "p10_us": rounded(p10_us),
        "p90_us": rounded(p90_us),
        "samples": len(timing.samples_us),
        "launches": timing.launches,
        "tflops": rounded(case.flops / timing.median_us * 1e-6),
        "gbps": rounded(case.compulsory_bytes / timing.median_us * 1e-3),
        "cold_l2": timer.cold_by is not None,
        "cold_by": timer.cold_by,
        "graph": timer.is_graph,
        **({"host": True} if timer.has_host else {}),
        "rel_fro_error": errors and rounded(errors.rel_fro),
        "max_abs_error": errors and rounded(errors.max_abs),
        **({"lse_error": rounded(errors.lse)} if errors and errors.lse is not None else {}),
        "sm_clock_mhz": statistics.median(timing.clocks_mhz) if timing.clocks_mhz else None,
        "power_w": round(statistics.median(timing.powers_w), 1) if timing.powers_w else None,
        "supported": True,
    }
