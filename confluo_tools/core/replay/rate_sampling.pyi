from array import array
from typing import final

from _typeshed import ReadableBuffer

@final
class RunList:
    times: array[int]
    steps: array[int]
    counts: array[int]
    def __init__(self) -> None: ...
    def __len__(self) -> int: ...

@final
class RunSampler:
    threshold: int
    def __init__(self, threshold: int) -> None: ...
    def offer(self, times: ReadableBuffer) -> RunList: ...
    def flush(self) -> RunList: ...

def infer_times(times: ReadableBuffer, steps: ReadableBuffer, counts: ReadableBuffer) -> array[int]: ...
