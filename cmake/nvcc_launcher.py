"""Compiler launcher of CUDA sources: nvcc_launcher.py [ccache] nvcc ARGS...

Runs nvcc, keeps what ptxas reported (registers, stack, shared memory) in OBJECT.ptxas beside the
object, and fails where ptxas says in an information line, which no warning flag catches, that it
serialised wgmma, added waits of its own, or ignored setmaxnreg.
"""

import pathlib
import re
import subprocess
import sys

FORBIDDEN = re.compile(r"serializ|injected|setmaxnreg.*ignored", re.IGNORECASE)
PTXAS = re.compile(r"^(ptxas|nvlink) info|^\s+\d+ bytes stack frame|^\s*$")


def main() -> int:
    command = sys.argv[1:]
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    lines = result.stderr.splitlines()
    sys.stderr.writelines(f"{line}\n" for line in lines if not PTXAS.match(line))
    if result.returncode != 0 or "-o" not in command or "-c" not in command:
        return result.returncode

    output = pathlib.Path(command[command.index("-o") + 1])
    bad = [line for line in lines if FORBIDDEN.search(line)]
    if bad:
        output.unlink(missing_ok=True)
        sys.stderr.write("error: ptxas reports what this build forbids:\n  " + "\n  ".join(bad) + "\n")
        return 1
    output.with_name(output.name + ".ptxas").write_text(result.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
