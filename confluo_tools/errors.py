"""Errors for the user.  Each prints as one line: WHERE: what is wrong; what to do."""

from __future__ import annotations

TROUBLE = 2
TEMPFAIL = 75


class ConfluoError(Exception):
    """An error that the user can correct.

    ``where`` is the path, field or option at fault ('' when there is none); ``hint`` is what to do.
    """

    exit_status = TROUBLE

    def __init__(self, what: str, *, where: object = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = str(where)
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        """For pickle and copy, whatever the constructor takes: errors go from process to process."""
        return _restored, (type(self), self.args, self.__dict__)

    def __str__(self) -> str:
        line = f"{self.where}: {self.what}" if self.where else self.what
        return f"{line}; {self.hint}" if self.hint else line


def _restored(kind: type[ConfluoError], args: tuple[object, ...], state: dict[str, object]) -> ConfluoError:
    made = kind.__new__(kind, *args)
    made.__dict__.update(state)
    return made


class UsageError(ConfluoError):
    """The command line, an expression or a configuration file is invalid."""


class SchemaError(ConfluoError):
    """A schema is malformed, or two schemas do not fit together."""


class FormatError(ConfluoError):
    """Bytes are not what they claim to be (a capture, a stream, a segment)."""


class StoreError(ConfluoError):
    """A MultiLog is missing, damaged, of another version or of another log."""


class BusyError(ConfluoError):
    """Another process holds a lock that this command needs."""

    exit_status = TEMPFAIL


class DiskFullError(StoreError):
    """The disk has no room for the next rows; earlier rows are published and readable."""
