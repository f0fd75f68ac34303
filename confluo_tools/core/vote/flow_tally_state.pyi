from _typeshed import ReadableBuffer

from confluo_tools.core.block.block import Layout
from confluo_tools.core.vote.flow_tally import FlowTally

MAGIC: bytes

def dump(t: FlowTally) -> bytes: ...
def load(t: FlowTally, data: ReadableBuffer, layout: Layout | None = None) -> None: ...
def merge(t: FlowTally, other: FlowTally) -> None: ...
