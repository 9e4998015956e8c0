"""The library's exceptions. Each names the argument at fault and is a built-in one as well."""

from collections.abc import Iterator
from contextlib import contextmanager


class Error(Exception):
    """Base of all. Raised before anything is launched or written (CudaError aside).

    Error(code, argument, message); without an __init__(), which torch.compile cannot look into

    code       "invalid_argument", "unsupported", "workspace_too_small", "no_device" or "cuda"
    argument   the argument at fault: "k", "softmax_scale", ...
    """

    @property
    def code(self) -> str:
        return self.args[0]

    @property
    def argument(self) -> str:
        return self.args[1]

    @property
    def message(self) -> str:
        return self.args[2]

    def __str__(self) -> str:
        return f"{self.argument}: {self.message}"


class InvalidArgumentError(Error, ValueError):
    """The call contradicts itself or its documented contract."""


class ArgumentTypeError(Error, TypeError):
    """An argument is of the wrong Python type, such as a list where a tensor must be."""


class UnsupportedError(Error, NotImplementedError):
    """A valid problem that the chosen kernel or device cannot run."""


class NoDeviceError(Error, RuntimeError):
    """There is no such device, or this build has no CUDA."""


class CudaError(Error, RuntimeError):
    """The CUDA runtime or driver reported an error."""


_CLASSES = {
    "invalid_argument": InvalidArgumentError,
    "workspace_too_small": InvalidArgumentError,
    "unsupported": UnsupportedError,
    "no_device": NoDeviceError,
    "cuda": CudaError,
}

# Arguments whose names in Python and in C++ differ.
_PYTHON_NAMES = {
    "o": "out",
    "o_scale": "out_scale",
    "c": "out",
    "scale": "softmax_scale",
    "window": "window_size",
}


def make(code: str, argument: str, message: str) -> Error:
    """The exception for a C++ error; called by the compiled module."""
    error = _CLASSES[code](code, _PYTHON_NAMES.get(argument, argument), message)
    error.native_argument = argument  # for renamed()
    return error


@contextmanager
def renamed(**names: str) -> Iterator[None]:
    """Where a call's argument has another name than the compiled module's."""
    try:
        yield
    except Error as error:
        native_argument = getattr(error, "native_argument", error.argument)
        argument = names.get(native_argument, error.argument)
        raise type(error)(error.code, argument, error.message) from None


def invalid(argument: str, message: str) -> InvalidArgumentError:
    return InvalidArgumentError("invalid_argument", argument, message)


def wrong_type(argument: str, message: str) -> ArgumentTypeError:
    return ArgumentTypeError("invalid_argument", argument, message)
