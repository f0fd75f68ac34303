from typing import final

@final
class Bell:
    def __init__(self) -> None: ...

@final
class BatchQueue:
    size: int
    filled: Bell
    emptied: Bell
    def __init__(self, size: int, filled: Bell) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def batches(self) -> int: ...
    @property
    def free(self) -> int: ...
