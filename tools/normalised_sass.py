"""SASS without what may differ between two builds of the same code.

Addresses and encodings of instructions go, and with them what encodings alone hold (stall counts,
scoreboards). Names, and offsets in the constant banks of parameters and addresses, become the n-th
distinct one of their function. What stays is opcodes, modifiers, operands and control flow. An
offset into the parameters that the code computes in a register, as an index, stays too.
"""

import collections
import re
from collections.abc import Hashable, Iterable, Iterator

from sass import FUNCTION

INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]+)\*/\s+(.*?)\s*;")
BRANCH = re.compile(r"^(?:@\S+ )?(?:BRA|BRX|BSSY|CALL|JMP|JMX|WARPSYNC)\b.* (0x[0-9a-f]+)$")
CONSTANT = re.compile(r"c\[(0x[04])\]\[(U?R\d+\+)?(0x[0-9a-f]+)\]")
NAME = re.compile(r"(@(?:lo|hi)\(|`\()([^()]+)\)")
WRITE = re.compile(r"^(?:@\S+ )?(\S+) (U?R)(\d+)\b")
LEAVE = re.compile(r"^(BRA (0x|L_|\+|-)|EXIT|RET\b)")  # whatever predicates hold
# The lower half of a sum of 64 bits.
SUM = re.compile(r"^((?:@\S+ )?U?IADD3 U?R\d+, U?P\d, (U?R)(\d+), )(0x[0-9a-f]+)(, U?RZ)$")

PARAMETER_BANK = "0x0"
FIRST_PARAMETER = 0x210  # of sm_90a; below are the launch's dimensions and the like
PARAMETERS_ADDRESS = "c[0x0][0x198]"


class Names:
    """Calls the n-th distinct thing of a kind kind_n."""

    def __init__(self):
        self._names: dict[str, dict[Hashable, str]] = collections.defaultdict(dict)

    def name(self, kind: str, thing: Hashable) -> str:
        known = self._names[kind]
        return known.setdefault(thing, f"{kind}_{len(known)}")

    def has(self, kind: str, thing: Hashable) -> bool:
        return thing in self._names[kind]


def registers_written(opcode: str) -> int:
    """How many, from the first one on; rather too many than too few."""
    if "GMMA" in opcode:
        return 256
    wide = re.search(r"\.F?64\b|WIDE|^D", opcode)
    return 4 if re.search(r"\.128|LDSM|MMA", opcode) else 2 if wide else 1


class ParameterAddresses:
    """The registers that hold the parameters' address, to which a tensor map's offset is added.

    Instructions are followed in their order in memory, and branches forwards.
    """

    def __init__(self):
        self._registers: frozenset[tuple[str, int]] = frozenset()
        self._is_reached = True  # by the instruction before
        self._at_labels: dict[int, frozenset[tuple[str, int]]] = {}

    def __contains__(self, register: tuple[str, int]) -> bool:
        return register in self._registers

    def arrive(self, place: int) -> None:
        at_label = self._at_labels.get(place, self._registers)
        self._registers = at_label & self._registers if self._is_reached else at_label
        self._is_reached = True

    def branch(self, target: int) -> None:
        self._at_labels[target] = self._at_labels.get(target, self._registers) & self._registers

    def follow(self, text: str) -> None:
        if write := WRITE.match(text):
            opcode, kind, first = write.group(1), write.group(2), int(write.group(3))
            written = {(kind, first + i) for i in range(registers_written(opcode))}
            self._registers -= written
            if text.endswith(PARAMETERS_ADDRESS):
                self._registers |= {(kind, first)}
        elif LEAVE.match(text):
            self._registers = frozenset()
            self._is_reached = False


class Normaliser:
    """Of one function's instructions, in their order."""

    def __init__(self, places: set[int]):
        self._places = places  # the instructions' addresses
        self._names = Names()
        self._addresses = ParameterAddresses()

    def lines(self, place: int, text: str) -> Iterator[str]:
        """An instruction, behind its label where an earlier one branches to it."""
        self._addresses.arrive(place)
        if self._names.has("L", place):
            yield f"{self._names.name('L', place)}:"
        if branch := BRANCH.match(text):
            text = text[: branch.start(1)] + self._target(place, int(branch.group(1), 16))
        offset = SUM.match(text)
        is_parameter = offset and (offset.group(2), int(offset.group(3))) in self._addresses
        self._addresses.follow(text)
        if is_parameter:
            name = self._names.name("param_address", offset.group(4))
            text = f"{offset.group(1)}{name}{offset.group(5)}"
        text = CONSTANT.sub(self._constant, text)
        yield NAME.sub(lambda m: f"{m.group(1)}{self._names.name('name', m.group(2))})", text)

    def _target(self, place: int, target: int) -> str:
        """A label forwards, a distance backwards: neither depends on what follows."""
        if target <= place or target not in self._places:
            return f"{target - place:+#x}"
        self._addresses.branch(target)
        return self._names.name("L", target)

    def _constant(self, match: re.Match) -> str:
        bank, register, offset = match.groups()
        if bank == PARAMETER_BANK and int(offset, 16) < FIRST_PARAMETER:
            return match.group()
        kind = "param" if bank == PARAMETER_BANK else "address"
        return f"c[{bank}][{register or ''}{self._names.name(kind, offset)}]"


def normalise(instructions: list[tuple[int, str]]) -> list[str]:
    """A function's instructions, given with their addresses, and labels."""
    normaliser = Normaliser({place for place, _ in instructions})
    return [line for place, text in instructions for line in normaliser.lines(place, text)]


def count_instructions(code: list[str]) -> int:
    return sum(not line.endswith(":") for line in code)


def functions(lines: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """The symbols of a disassembly with their normalised code, one at a time."""
    symbol, instructions = None, []
    for line in lines:
        if instruction := INSTRUCTION.match(line):
            instructions.append((int(instruction.group(1), 16), instruction.group(2)))
        elif function := FUNCTION.match(line):
            if symbol:
                yield symbol, normalise(instructions)
            symbol, instructions = function.group(1), []
    if symbol:
        yield symbol, normalise(instructions)
