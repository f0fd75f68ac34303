"""URLs of objects."""

from __future__ import annotations

from typing import NamedTuple

from confluo_tools.errors import UsageError

SCHEMES = ("s3", "gs", "az", "abfs", "http", "https", "memory")
READ_ONLY = ("http", "https")


class ObjectAddress(NamedTuple):
    """``scheme://bucket/key``; of http and https, the bucket is the host."""

    scheme: str
    bucket: str
    key: str

    @property
    def root(self) -> str:
        """The URL of the bucket, without a slash at the end."""
        return f"{self.scheme}://{self.bucket}"


def is_url(name: str) -> bool:
    """Whether ``name`` is the URL of an object or of a folder of objects, right or wrong."""
    scheme, mark, _ = name.partition("://")
    return bool(mark) and scheme in SCHEMES


def refuse_url(path: str, hint: str) -> None:
    """Raises UsageError for the URL of something that can only be on this host."""
    if is_url(path):
        raise UsageError("is in an object store", where=path, hint=hint)


def is_folder_url(name: str) -> bool:
    """Whether a URL names a folder: it ends with a slash, or its last name has no dot or is a partition ``host=NAME``.

    No request is made.
    """
    if not is_url(name):
        return False
    last = parse(name).key.rpartition("/")[2]
    return "." not in last or last.startswith("host=")


def parse(url: str) -> ObjectAddress:
    """The parts of a URL.  Raises UsageError, which does not repeat a password."""
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    if "@" in bucket and scheme != "abfs":
        hint = "give credentials by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or by a profile"
        raise UsageError("has a user name or password", where=f"{scheme}://...", hint=hint)
    if not bucket or not bucket.isprintable() or " " in bucket:
        raise UsageError("names no bucket", where=url, hint=f"write {scheme}://BUCKET/NAME")
    if scheme in READ_ONLY:
        if "?" in key or "#" in key:
            raise UsageError("has a query or a fragment", where=url, hint="name the object alone")
        from urllib.parse import unquote

        key = unquote(key)
    return ObjectAddress(scheme, bucket, key)
