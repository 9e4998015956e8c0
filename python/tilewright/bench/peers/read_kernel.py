"""A kernel that reads memory and does next to nothing else, in Triton."""

from typing import Any

import torch
import triton
import triton.language as tl

VERSION = f"Triton {triton.__version__}"

WORDS = 4096  # of 4 bytes, that a program asks for at a time: 4 loads of 16 bytes a thread
WARPS = 8
PROGRAMS_AN_SM = 8  # all threads that an SM has


class Reader:
    def __init__(self, device: str):
        properties = torch.cuda.get_device_properties(device)
        self.programs = PROGRAMS_AN_SM * properties.multi_processor_count
        self.out = torch.empty(self.programs, dtype=torch.int32, device=device)

    def __call__(self, words: Any) -> None:
        """Of a flat tensor of int32."""
        programs = min(self.programs, triton.cdiv(len(words), WORDS))
        _read[(programs,)](words, self.out, len(words), WORDS=WORDS, num_warps=WARPS)


@triton.jit
def _read(words, out, count, WORDS: tl.constexpr):
    """Leaves a sum of each program's words, so that none of the loads can be left out."""
    program = tl.program_id(0)
    total = tl.zeros([WORDS], dtype=tl.int32)
    lanes = tl.arange(0, WORDS)
    for block in range(program, tl.cdiv(count, WORDS), tl.num_programs(0)):
        at = block.to(tl.int64) * WORDS + lanes
        total ^= tl.load(words + at, mask=at < count, other=0)
    tl.store(out + program, tl.sum(total))
