"""A bucket: get ranges of objects, list, put, copy and delete them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from confluo_tools.objects.access import backend
from confluo_tools.objects.address import READ_ONLY, ObjectAddress, parse
from confluo_tools.objects.faults import ObjectStoreError, fault
from confluo_tools.objects.threads import WaitingThreads

T = TypeVar("T")

PAGE = 1000  # objects in one answer of S3
MANY = 8  # requests at the same time


class ObjectStat(NamedTuple):
    """Size in bytes, and the tag that changes with the content ('' if the store has none)."""

    size: int
    tag: str


class Bucket:
    """One bucket.  Keys are without a slash at the start.

    Raises OSError for what is wrong with one object and ObjectStoreError for what is wrong with the store.  Each
    request is tried again a few times, with growing waits, before that.
    """

    def __init__(self, address: ObjectAddress) -> None:
        self.root = address.root
        self.writable = address.scheme not in READ_ONLY
        self._store, self._endpoint = backend(address)
        self.threads = WaitingThreads(MANY, "objects")  # for requests at the same time

    def url(self, key: str) -> str:
        return f"{self.root}/{key}"

    def _ask(self, key: str, call: Callable[[Any], T]) -> T:
        """What ``call`` gives of the module obstore.  The main thread lets another one wait: it can be interrupted."""
        if os.getpid() != _process:  # the library's threads are not in this process: a request would wait for ever
            raise ObjectStoreError("cannot be read by a fork of the process that opened it", where=self.url(key))

        def asked() -> T:
            import obstore
            from obstore.exceptions import BaseError

            try:
                return call(obstore)
            except (BaseError, ValueError, NotImplementedError, OSError) as e:
                raise fault(e, self.url(key), self._endpoint) from None

        if threading.current_thread() is threading.main_thread():
            return self.threads.submit(asked).result()
        return asked()

    def get(self, key: str, start: int, end: int, tag: str = "") -> memoryview:
        """Bytes ``start`` to ``end`` of an object; with ``tag`` only if it is still that one."""
        options: Any = {"range": (start, end)}
        if tag:
            options["if_match"] = tag
        data = self._ask(key, lambda obstore: memoryview(obstore.get(self._store, key, options=options).bytes()))
        if len(data) != end - start:
            raise fault(ValueError("UnexpectedRange"), self.url(key), self._endpoint)
        return data

    def tail(self, key: str, most: int) -> tuple[memoryview, ObjectStat]:
        """The last bytes of an object of unknown size, at most ``most``, and its size and tag."""

        def read(obstore: Any) -> tuple[memoryview, ObjectStat]:
            try:
                found = obstore.get(self._store, key, options={"range": {"suffix": most}})
            except NotImplementedError:  # Azure
                found = obstore.get(self._store, key)
            meta = found.meta
            return memoryview(found.bytes())[-most:], ObjectStat(meta["size"], meta["e_tag"] or "")

        return self._ask(key, read)

    def first(self, key: str, most: int) -> bytes:
        """The first ``most`` bytes of an object, all of it if it has fewer."""

        def read(obstore: Any) -> bytes:
            out: list[memoryview] = []
            missing = most
            for piece in obstore.get(self._store, key).stream():  # a range would be refused of an empty object
                out.append(memoryview(piece))
                missing -= len(out[-1])
                if missing <= 0:
                    break
            return b"".join(out)[:most]

        return self._ask(key, read)

    def stat(self, key: str) -> ObjectStat:
        meta = self._ask(key, lambda obstore: obstore.head(self._store, key))
        return ObjectStat(meta["size"], meta["e_tag"] or "")

    def pages(self, folder: str, after: str = "") -> Iterator[list[tuple[str, ObjectStat]]]:
        """The objects below a folder in pages of `PAGE`: (key, size and tag).  Only keys greater than ``after``."""
        folder = folder.strip("/")
        seen: set[str] = set()
        stream: Any = self._ask(
            folder, lambda o: iter(o.list(self._store, folder or None, offset=after or None, chunk_size=PAGE))
        )
        while True:
            page = self._ask(folder, lambda _: next(stream, None))
            if page is None:
                return
            fresh = [(m["path"], ObjectStat(m["size"], m["e_tag"] or "")) for m in page if m["path"] not in seen]
            if not fresh:
                raise ObjectStoreError("the list of its objects repeats itself", where=self.url(folder))
            seen.update(key for key, _ in fresh)
            yield [one for one in fresh if not folder or one[0].startswith(folder + "/")]

    def children(self, folder: str) -> tuple[list[str], list[tuple[str, ObjectStat]]]:
        """The folders in a folder, and its objects."""
        folder = folder.strip("/")
        found = self._ask(folder, lambda obstore: obstore.list_with_delimiter(self._store, folder or None))
        objects = [(m["path"], ObjectStat(m["size"], m["e_tag"] or "")) for m in found["objects"]]
        return [str(name) for name in found["common_prefixes"]], objects

    def put(self, key: str, data: Any) -> None:
        """Make or replace an object: readers see all of it or the old one.  Many bytes are sent in several requests."""
        self._check_writable(key)
        self._ask(key, lambda obstore: obstore.put(self._store, key, data))

    def copy(self, key: str, to: str) -> None:
        self._check_writable(to)
        self._ask(key, lambda obstore: obstore.copy(self._store, key, to))

    def delete(self, key: str) -> None:
        """Delete an object; one that is not there is deleted already."""
        self._check_writable(key)
        with suppress(FileNotFoundError):
            self._ask(key, lambda obstore: obstore.delete(self._store, key))

    def _check_writable(self, key: str) -> None:
        if not self.writable:
            raise ObjectStoreError("can only be read", where=self.url(key))


_buckets: dict[str, Bucket] = {}
_lock = threading.Lock()
_process = 0  # the one that uses object stores


def bucket(url: str) -> tuple[Bucket, str]:
    """The bucket of a URL, opened once in a process, and the key of the object or folder in it."""
    address = parse(url)
    global _process
    with _lock:
        _process = _process or os.getpid()
        found = _buckets.get(address.root)
        if found is None:
            found = _buckets[address.root] = Bucket(address)
    return found, address.key
