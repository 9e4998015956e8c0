"""The console script `tilewright`: the compiled command line that lies in this package."""

import os
import pathlib
import sys

PROGRAM = pathlib.Path(__file__).parent / "bin" / "tilewright"
_NOT_SUPPORTED = 3  # one of the command line's exit codes
_REMEDY = """\
error: this installation of Tilewright has no command line: CLI11, nlohmann-json or fmt was missing
when it was built. Install them and install Tilewright again:
  apt-get install libcli11-dev nlohmann-json3-dev libfmt-dev"""


def main() -> int:
    if not PROGRAM.exists():
        print(_REMEDY, file=sys.stderr)
        return _NOT_SUPPORTED
    os.execv(PROGRAM, ["tilewright", *sys.argv[1:]])
