from _typeshed import ReadableBuffer

from confluo_tools.core.query.rollup import Rollup

MAGIC: bytes

def dump(r: Rollup) -> bytes: ...
def load(r: Rollup, data: ReadableBuffer) -> None: ...
