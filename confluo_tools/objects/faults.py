"""What went wrong with an object or a store, in one line.

The library says it in an exception with a text of many lines, which has the answer of the server.
What is wrong with one object is an OSError, as that of a file; what is wrong with all is an ObjectStoreError.
"""

from __future__ import annotations

import errno
import re

from confluo_tools.errors import StoreError

_CODE = re.compile(r"<Code>\s*(\w{1,60})\s*</Code>")
_STATUS = re.compile(r"status code: (\d{3})\b")
_REGION = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
_KEYS = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired"}
_SLOW = {"SlowDown", "ServiceUnavailable", "RequestLimitExceeded", "TooManyRequests", "Throttling"}


class ObjectStoreError(StoreError):
    """A store cannot be used: no such bucket, not reachable, wrong region or credentials, too many requests."""


def fault(e: BaseException, url: str, endpoint: str) -> Exception:
    """The error for ``e``, an exception of obstore about the object at ``url``."""
    text = str(e)
    code, status = _first(_CODE, text), _first(_STATUS, text)
    said = " ".join(filter(None, (status, code)))
    kind = type(e).__name__
    if code == "NoSuchBucket":
        return ObjectStoreError("there is no such bucket", where=url, hint="is its name right, and the endpoint?")
    if code in _REGION or "incorrectly configured region" in text or status == "301":
        return ObjectStoreError("the bucket is in another region", where=url, hint="set AWS_REGION to it")
    if code in _KEYS or kind == "UnauthenticatedError" or "credential" in text.partition("\n")[0].lower():
        hint = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        return ObjectStoreError(f"the credentials are not accepted{_in_brackets(said)}", where=url, hint=hint)
    if isinstance(e, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "there is no such object", url)
    if isinstance(e, PermissionError) or kind == "PermissionDeniedError" or status == "403":
        return PermissionError(errno.EACCES, f"access is denied{_in_brackets(said)}", url)
    if kind == "PreconditionError" or status in ("412", "416"):
        return OSError(errno.ESTALE, "it changed while it was read", url)
    if kind == "InvalidPathError":
        names = re.findall(r'"([^"]*)"', text.partition("\n")[0])
        hint = "rename or remove it: names of objects have no empty parts, and no parts . and .."
        what = f"the store has a name that cannot be read{': ' + ascii(names[0])[:100] if names else ''}"
        return ObjectStoreError(what, where=url, hint=hint)
    if "UnexpectedRange" in text or "NotPartial" in text:
        return OSError(errno.EIO, "the server sent the wrong bytes", url)
    if code in _SLOW or status in ("429", "503"):
        what = f"the server is overloaded{_in_brackets(said)}, also after some waiting"
        return ObjectStoreError(what, where=url, hint="try again later")
    if "kind: Interrupted" in text or "kind: Decode" in text:
        return OSError(errno.EIO, "the server ends its answer early", url)
    if "kind: Timeout" in text or "timed out" in text:
        return ObjectStoreError(f"no answer in time from {endpoint}", where=url, hint="is the server up?")
    if "HTTP error" in text or "error sending request" in text:
        hint = "is the endpoint right (AWS_ENDPOINT_URL), and the server up?"
        return ObjectStoreError(f"{endpoint} cannot be reached", where=url, hint=hint)
    first = text.partition("\n")[0].partition(": ")[2] or text.partition("\n")[0]
    return ObjectStoreError(f"the store failed: {said or first[:200]}", where=url)


def _first(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return "" if match is None else match[1]


def _in_brackets(said: str) -> str:
    return f" ({said})" if said else ""
