"""Compiler launcher of CUDA sources: nvcc_launcher.py [--werror] [ccache] nvcc ARGS...

Runs nvcc, keeps what ptxas reported (registers, stack, shared memory) in OBJECT.ptxas beside the
object, and warns where ptxas says in an information line, which no warning flag catches, that it
serialised wgmma, added waits of its own, or ignored setmaxnreg. With --werror that is an error.
"""

import pathlib
import re
import subprocess
import sys

SLOW = re.compile(r"serializ|injected|setmaxnreg.*ignored", re.IGNORECASE)
PTXAS = re.compile(r"^(ptxas|nvlink) info|^\s+\d+ bytes stack frame|^\s*$")


def main() -> int:
    werror = sys.argv[1] == "--werror"
    command = sys.argv[1 + werror :]
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    lines = result.stderr.splitlines()
    sys.stderr.writelines(f"{line}\n" for line in lines if not PTXAS.match(line))
    if result.returncode != 0 or "-o" not in command or "-c" not in command:
        return result.returncode

    output = pathlib.Path(command[command.index("-o") + 1])
    bad = [line for line in lines if SLOW.search(line)]
    if bad:
        kind = "error" if werror else "warning"
        sys.stderr.write(
            "\n  ".join([f"{kind}: ptxas reports what makes kernels slow:", *bad]) + "\n"
        )
        if werror:
            output.unlink(missing_ok=True)
            return 1
    output.with_name(output.name + ".ptxas").write_text(result.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
