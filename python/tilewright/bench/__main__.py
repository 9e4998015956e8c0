"""The command line of the race: python -m tilewright.bench attention --help

Several races in one process, which loads the peers' libraries once: attention ... --then gemm ...
"""

import argparse
import contextlib
import faulthandler
import fnmatch
import itertools
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any, NoReturn

import tilewright
from tilewright._extras import needs

with needs("bench"):
    from tilewright.bench import attention, convert, decode, dsv4, fp8, gemm, peers
    from tilewright.bench.machine import CpuMachine, CudaMachine
    from tilewright.bench.race import Entrant, Rules, identity, race, to_line, warm_up
    from tilewright.bench.report import print_case
    from tilewright.bench.results_file import ResultsFile
    from tilewright.bench.timing import CpuTimer

OPERATIONS = {
    "attention": attention,
    "fp8": fp8,
    "decode": decode,
    "dsv4": dsv4,
    "gemm": gemm,
    "convert": convert,
}

try:
    import torch
except ImportError:
    torch = None


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tilewright.bench", description=__doc__)
    operations = parser.add_subparsers(dest="operation", required=True)
    for name, operation in OPERATIONS.items():
        command = operations.add_parser(
            name, formatter_class=argparse.ArgumentDefaultsHelpFormatter
        )
        operation.add_arguments(command)
        command.add_argument(
            "--kernels", default="all", help="ours: names or patterns (flash/*), all or none"
        )
        command.add_argument(
            "--peers",
            default="all",
            help=f"of {', '.join(peers.module_names(name))}; all: those installed; none",
        )
        command.add_argument("--device", help="cpu, cuda, cuda:1; cuda where there is one")
        command.add_argument("--samples", type=int, help="of each implementation")
        command.add_argument("--seed", type=int, default=0, help="of the random inputs")
        command.add_argument("--check", action="store_true", help="check against float64")
        command.add_argument("--json", type=pathlib.Path, help="write results lines here")
        command.add_argument("--append", action="store_true", help="keep the lines that are there")
        command.add_argument(
            "--resume",
            action="store_true",
            help="keep them, and leave out cases that all have raced, in these versions",
        )
        command.add_argument(
            "--omit-unsupported", action="store_true", help="no lines of what cannot run a case"
        )
        command.add_argument("--gap", type=float, help="idle seconds between rounds")
        command.add_argument(
            "--max-seconds",
            type=float,
            default=5.0,
            help="an implementation that has run for so long on a case takes no more samples",
        )
        command.add_argument(
            "--stall-seconds",
            type=float,
            help="end the process where a case takes longer, and print where it stands",
        )
        command.set_defaults(**operation.RULES)
    return parser.parse_args(arguments)


def refuse(message: str) -> NoReturn:
    """What this machine cannot do, with the exit code that the command line has for it."""
    print(f"error: {message}", file=sys.stderr)
    sys.exit(3)


def why_no_cuda() -> str | None:
    if torch is None:
        return "PyTorch is not installed"
    return None if torch.cuda.is_available() else "PyTorch finds none"


def choose_device(wanted: str | None) -> str:
    device = wanted or ("cpu" if why_no_cuda() else "cuda")
    if device.startswith("cuda") and why_no_cuda():
        refuse(f"--device {device} needs a CUDA device: {why_no_cuda()}")
    return "cuda:0" if device == "cuda" else device


def is_of_gpu(pattern: str) -> bool:
    """Whether a pattern of --kernels names kernels that run on a GPU."""
    kernels = tilewright.kernels()
    rows = [*kernels, *(variant for kernel in kernels for variant in kernel.variants)]
    return any(row.device == "cuda" and fnmatch.fnmatch(row.name, pattern) for row in rows)


def load_kernels(command: str, wanted: str, device: str) -> list[peers.Peer]:
    ours = peers.load(command, peers.OURS, device)
    if wanted == "all":
        return [peer for peer in ours if peer.in_all]
    names = [peer.name.removeprefix(f"{peers.OURS}/") for peer in ours]
    chosen = []
    for pattern in wanted.split(","):
        places = [i for i, name in enumerate(names) if fnmatch.fnmatch(name, pattern)]
        if not places and device == "cpu" and is_of_gpu(pattern):
            why = why_no_cuda() or "the race is on the CPU"
            refuse(f"--kernels: {pattern} needs a CUDA device: {why}")
        if not places:
            known = ", ".join(dict.fromkeys(names))
            sys.exit(f"--kernels: {pattern} is not one of {known} on {device}")
        chosen += [ours[i] for i in places]
    return chosen


def load_peers(args: argparse.Namespace, device: str) -> list[peers.Peer]:
    """Ours first, in the table's order, then the others that are installed."""
    command = args.operation
    ours = load_kernels(command, args.kernels, device) if args.kernels != "none" else []
    known = peers.module_names(command)
    others = []
    for name in {"all": known, "none": []}.get(args.peers, args.peers.split(",")):
        if name not in known:
            sys.exit(f"--peers: {name} is not one of {', '.join(known)}")
        try:
            others += peers.load(command, name, device)
        except ImportError as error:
            print(f"without {name}: {error}", file=sys.stderr)
    return [peer for peer in ours + others if peer.configure(args)]


def report_failures(entrants: list[Entrant], case: Any) -> int:
    failures = [entrant for entrant in entrants if entrant.failed]
    for entrant in failures:
        name = entrant.peer.name.removeprefix(f"{peers.OURS}/")
        ours, others = (name, "none") if entrant.peer.is_ours else ("none", name)
        print(
            f"FAILED {entrant.peer.name}: {entrant.reason}\n"
            f"  reproduce: python -m tilewright.bench {case.arguments()} "
            f"--kernels {ours} --peers {others} --check",
            file=sys.stderr,
        )
    return len(failures)


@contextlib.contextmanager
def stall_limit(seconds: float | None) -> Iterator[None]:
    """A kernel that never ends, or a lock that is never free, shows as a stack of each thread."""
    if seconds:
        faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def has_raced(peer: peers.Peer, case: Any, machine: Any, results: ResultsFile, check: bool) -> bool:
    line = results.find(identity(peer, case, machine))
    if line is None or not line["supported"]:
        return line is not None and peer.supports(case) is not None
    return not (check and peer.is_answer) or line["rel_fro_error"] is not None


def main(arguments: list[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    parts = itertools.groupby(words, key=lambda word: word == "--then")
    races = [parse_arguments(list(part)) for is_between, part in parts if not is_between]
    return max(map(run_race, races or [parse_arguments([])]))


def run_race(args: argparse.Namespace) -> int:
    if args.resume and not args.json:
        sys.exit("--resume needs --json FILE, the file to resume")
    if args.json and not args.json.parent.is_dir():
        sys.exit(f"--json: {args.json.parent} is not a folder")
    operation = OPERATIONS[args.operation]
    device = choose_device(args.device)
    entrants = load_peers(args, device)
    if device == "cpu":
        machine, timer = CpuMachine(), CpuTimer()
        if torch is not None:
            torch.set_num_threads(machine.threads)
    else:
        machine, timer = CudaMachine(device), operation.cuda_timer(args, device)
    rules = Rules(args.samples, args.gap, args.max_seconds, args.check, args.seed)
    run = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {tilewright.__commit__}"
    print(f"{run} on {machine.description['gpu']}")

    results = ResultsFile(args.json, args.append, args.resume) if args.json else None
    able = {
        case: [p for p in entrants if not (args.omit_unsupported and p.supports(case))]
        for case in operation.cases(args, device)
    }
    if args.resume:
        count = len(able)
        able = {
            case: racing
            for case, racing in able.items()
            if not all(has_raced(p, case, machine, results, args.check) for p in racing)
        }
        print(f"{count - len(able)} of {count} cases are in {args.json} already")
    warm_up(entrants, list(able))

    failures = 0
    for index, (case, racing) in enumerate(able.items(), start=1):
        with stall_limit(args.stall_seconds):
            finished = race(racing, case, timer, machine, rules)
        lines = [to_line(entrant, case, run, timer, machine) for entrant in finished]
        print_case(f"{index}/{len(able)}: {case.label}", lines)
        failures += report_failures(finished, case)
        del finished  # and with it the inputs, before the next case makes its own
        if results:
            results.put(lines)
    return 1 if failures else 0


if __name__ == "__main__":
    with needs("bench"):
        sys.exit(main())
