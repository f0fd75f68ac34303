from _typeshed import ReadableBuffer

from confluo_tools.core.rollup import Rollup

MAGIC: bytes

def dump(r: Rollup) -> bytes: ...
def load(r: Rollup, data: ReadableBuffer) -> None: ...
