"""The exceptions of attn.

Every refusal is one sentence that names the argument, its value and what is accepted. Nothing was
written when one is raised, but for `DeviceError` and `FileError`.
"""


class Error(RuntimeError):
    """What every function of attn raises. `code` is the name of the kind, as in C++."""

    code = "internal"

    def __str__(self) -> str:
        """The sentence; of a long one, as it repeats a long value, beginning and end."""
        text = super().__str__()
        if len(text) <= 2000:
            return text
        return f"{text[:300]} ... ({len(text)} characters) ... {text[-400:]}"


class InvalidArgument(Error, ValueError):
    """An argument contradicts what is documented for it."""

    code = "invalid_argument"


class Unsupported(Error, NotImplementedError):
    """The problem is well-formed, but no kernel of the chosen backend takes it."""

    code = "unsupported"


class Unavailable(Error):
    """The backend that was asked for is not present on this machine."""

    code = "unavailable"


class OutOfMemory(Error, MemoryError):
    """Memory for results or workspace could not be allocated."""

    code = "out_of_memory"


class DeviceError(Error):
    """The driver of a GPU refused a call, or reported an error of earlier work there."""

    code = "device"


class FileError(Error, OSError):
    """A file could not be read or written, or its content is malformed."""

    code = "io"


class InternalError(Error):
    """A broken invariant of the library: please report it."""

    code = "internal"
