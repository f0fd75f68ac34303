"""A collector: lanes classify records, workers run the functions of flows, outlets deliver.  It can change its flows.

    lane -> Classifier -> BatchQueue -> FlowWorker -> FlowChain -> Outlet

All queues are bounded.  Rows of one five-tuple take one lane, one worker and one partition, so they keep their order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import TYPE_CHECKING
from zlib import crc32

from confluo_tools.core.stream.classifier import Classifier, FlowRoute
from confluo_tools.core.stream.flow_worker import FlowEnd, FlowWorker
from confluo_tools.errors import ConfluoError
from confluo_tools.stream.destination import takes_many
from confluo_tools.stream.flow_chain import FlowChain
from confluo_tools.stream.lane_functions import LaneFunctions
from confluo_tools.stream.stage_counts import StageCount
from confluo_tools.stream.window_share import FlowWindows, WindowShare, share_of

if TYPE_CHECKING:
    from confluo_tools.core.query.predicate import Program
    from confluo_tools.schema import Schema
    from confluo_tools.stream.flow_chain import OpenOutlet, Outlet
    from confluo_tools.stream.flows_file import FlowsReader, StreamFlow

QUEUE = 4 << 20  # bytes of the queue from a lane to a worker
CHANGE = 10.0  # s that queues may take to drain before flows change
HASH = "flow_hash"


class RunningFlow:
    """A flow with its ways in (functions and a route in each lane) and its chains (one for each of its workers).

    ``windows``: if lanes decide them; then the flow has one chain, and its other workers have ``shares``.
    """

    def __init__(
        self,
        flow: StreamFlow,
        workers: list[int],
        lanes: list[tuple[LaneFunctions, FlowRoute]],
        chains: list[FlowChain],
        windows: FlowWindows | None,
        shares: list[WindowShare],
    ) -> None:
        self.flow, self.workers, self.lanes, self.chains = flow, workers, lanes, chains
        self.windows, self.shares = windows, shares
        self.routes = [route for _, route in lanes]
        self.functions = [f for lane, _ in lanes for f in lane.functions] + [f for c in chains for f in c.functions]
        self.functions += [share.function for share in shares]

    @property
    def all_shares(self) -> list[WindowShare]:
        """Also that of the chain."""
        return [chain.share for chain in self.chains if chain.share is not None] + self.shares

    @property
    def ends(self) -> list[tuple[int, FlowEnd]]:
        """Where batches go in each worker."""
        return [(c.worker, c.end) for c in self.chains] + [(s.worker, s.end) for s in self.shares]

    def wire(self) -> None:
        for functions, route in self.lanes:
            functions.wire(route)
        for chain in self.chains:
            chain.wire(self.shares)
        if self.windows is not None:
            self.windows.clock.use([share.stage for share in self.all_shares])

    def counts(self) -> list[StageCount]:
        """Those of the functions, in the order of `functions`."""
        in_lanes = [c for functions, _ in self.lanes for c in functions.counts()]
        in_workers = [c for chain in self.chains for c in chain.counts()]
        return in_lanes + in_workers + [s.function.counts(self.flow.name, s.worker) for s in self.shares]

    def remarks(self) -> Iterable[str]:
        for name, lines in [
            *((f.name, f.function.remarks(f.stage)) for f in self.functions),
            *([("windows", self.windows.remarks())] if self.windows is not None else []),
        ]:
            yield from (f"flow '{self.flow.name}': {name}: {line}" for line in lines)


class StreamCollector:
    """Runs ``flows`` over records of the schema of ``reader``, which come in ``lanes``: give them to `classifiers`.

    ``workers``: threads that flows without their own share.  ``wait``: for room in full queues; otherwise records are
    dropped and counted.  ``finite``: the input has an end, so a pause in it is not silence.  `paused`, set by the owner
    of the lanes, is a context in which no lane classifies.
    """

    def __init__(
        self,
        reader: FlowsReader,
        flows: list[StreamFlow],
        open_outlet: OpenOutlet,
        *,
        lanes: int,
        workers: int,
        wait: bool,
        finite: bool = False,
    ) -> None:
        self.reader, self._open, self._finite = reader, open_outlet, finite
        self._lanes, self._shared, self.wait = lanes, workers, wait
        self.classifiers = [Classifier(reader.schema.layout, wait=wait) for _ in range(lanes)]
        self.paused: Callable[[], AbstractContextManager[object]] = nullcontext
        self.receive: Callable[[], list[StageCount]] = lambda: []
        self.workers: list[FlowWorker] = []
        self._groups: dict[tuple[str, str], list[int]] = {}  # of workers
        self._threads: list[threading.Thread] = []
        self._numbers = count()  # of pipelines
        self._past: dict[tuple[str, str, int], StageCount] = {}  # counters of what runs no more
        self._before_queues: set[str] = set()  # functions that run in lanes
        self._closing: list[Closing] = []
        self._lock = threading.RLock()
        self._stopped = False
        self.flows: list[RunningFlow] = []
        flows_now, ends = self._built(flows)
        self._use(flows_now, ends)

    def remarks(self) -> list[str]:
        """What the counters do not say of the functions that run."""
        return [line for running in self.flows for line in running.remarks()]

    # -- flows

    def _group(self, flow: StreamFlow) -> list[int]:
        """Numbers of the workers of a flow; they are made if there are none."""
        if flow.workers:
            key, n = ("flow", flow.name), flow.workers
        elif flow.worker:
            key, n = ("worker", flow.worker), 1
        else:
            key, n = ("", ""), self._shared if takes_many(flow.to) else 1  # others have one writer
        group = self._groups.setdefault(key, [])
        size = max(QUEUE, 8 * flow.batch.layout.row_bytes + 1024 * flow.batch.layout.n)
        while len(group) < n:
            group.append(len(self.workers))
            self.workers.append(FlowWorker(self._lanes, size))
        if flow.whole:
            return [group[crc32(flow.name.encode()) % n]]
        return group[:n]

    def _built(self, flows: list[StreamFlow]) -> tuple[list[RunningFlow], list[list[FlowEnd | None]]]:
        """All that the flows need; nothing that runs is touched.  Raises ConfluoError."""
        opened: list[Outlet] = []
        old = {r.flow.name: r for r in self.flows}

        def chain(flow: StreamFlow, worker: int, share: WindowShare | None = None) -> FlowChain:
            def outlet(schema: Schema) -> Outlet:
                opened.append(self._open(flow.to, schema, next(self._numbers)))
                return opened[-1]

            before = [c for c in old[flow.name].chains if c.worker == worker] if flow.name in old else []
            made = FlowChain(flow, worker, outlet, before[0] if before else None, share)
            if self._finite:
                made.wait_for_rows()
            return made

        found: list[RunningFlow] = []
        try:
            for number, flow in enumerate(flows):
                workers, same = self._group(flow), old.get(flow.name)
                windows = self._windows(flow, same)
                lanes = [self._lane(flow, number, workers, lane, same, windows) for lane in range(self._lanes)]
                if windows is None:
                    found.append(RunningFlow(flow, workers, lanes, [chain(flow, w) for w in workers], None, []))
                    continue
                before = same.all_shares if same is not None else []
                first, *others = (WindowShare(windows, w, share_of(before, w), last=w == workers[0]) for w in workers)
                found.append(RunningFlow(flow, workers, lanes, [chain(flow, first.worker, first)], windows, others))
        except BaseException:
            for one in opened:
                one.stop()
                Closing(one).join()
            raise
        ends: list[list[FlowEnd | None]] = [[None] * len(flows) for _ in self.workers]
        for number, running in enumerate(found):
            for worker, end in running.ends:
                ends[worker][number] = end
        return found, ends

    def _windows(self, flow: StreamFlow, old: RunningFlow | None) -> FlowWindows | None:
        """The windows that the lanes of the flow decide."""
        if flow.windows is None:
            return None
        windows = FlowWindows(flow, flow.windows, self.reader.schema, old.windows if old is not None else None)
        if self._finite:
            windows.clock.silence = 0
        return windows

    def _lane(
        self,
        flow: StreamFlow,
        number: int,
        workers: list[int],
        lane: int,
        old: RunningFlow | None,
        windows: FlowWindows | None,
    ) -> tuple[LaneFunctions, FlowRoute]:
        schema, clock = self.reader.schema, windows.clock if windows is not None else None
        functions = LaneFunctions(flow, lane, schema, old.lanes[lane][0] if old is not None else None, clock)
        try:
            route = FlowRoute(
                schema.layout,
                flow.batch.layout,
                number,
                [self.workers[w] for w in workers],
                lane,
                program=self._program(flow.match),
                goes_on=flow.goes_on,
                hash_column=schema.layout.get(HASH),
                first=functions.first,
                clock=clock,
            )
            return functions, route
        except ValueError as e:  # records of a megabyte and more
            raise ConfluoError(str(e), where=f"flow '{flow.name}'", hint="leave large fields out") from None

    def _program(self, match: str) -> Program | None:
        if not match:
            return None
        from confluo_tools.expr import compile

        return compile(match, self.reader.schema, now_ns=time.time_ns(), filters=self.reader.filters).program

    def _use(self, flows: list[RunningFlow], ends: list[list[FlowEnd | None]]) -> None:
        for running in flows:
            running.wire()
            self._before_queues |= {c.name for functions, _ in running.lanes for c in functions.counts()}
            self._before_queues.add(f"{running.flow.name}/windows")
        for worker, row in zip(self.workers, ends, strict=True):
            worker.use(row)
        for lane, classifier in enumerate(self.classifiers):
            classifier.use([running.routes[lane] for running in flows])
        self.flows = flows

    def change(self, text: str) -> list[str]:
        """Take the flows of ``text`` (flows.yaml) instead; returns a line for each change.  No record is lost.

        Raises ConfluoError, and changes nothing, when they are not valid or a place is not reachable.
        """
        with self._lock:
            flows = self.reader.text(text)
            if self._stopped:
                raise ConfluoError("the run is ending")
            lines = differences([r.flow for r in self.flows], flows)
            if not lines:
                return []
            built, ends = self._built(flows)
            with self.paused():
                if not self._drained(CHANGE):
                    for running in built:
                        for chain in running.chains:
                            self._close_unused(chain, {id(c.outlet) for r in self.flows for c in r.chains})
                    hint = "a place does not take records; try again later"
                    raise ConfluoError("the queues did not become empty", where="set", hint=hint)
                self._retire(built)
                self._use(built, ends)
                self.start()
            return lines

    def _retire(self, new: Sequence[RunningFlow]) -> None:
        """End what the new flows do not have, and keep its counters."""
        names = {r.flow.name: r for r in new}
        outlets = {id(c.outlet) for r in new for c in r.chains}
        stages = {id(f.stage) for r in new for f in r.functions}
        for running in self.flows:
            self._keep([self._queue(running)])
            after = names.get(running.flow.name)
            windows = after is not None and goes_on(running, after)
            if running.windows is not None and not windows:
                self._keep(running.windows.counts())
            for chain in running.chains:
                same = [c for c in after.chains if c.worker == chain.worker] if after is not None else []
                chain.finish(same[0] if same else None, windows=windows)
                if id(chain.outlet) not in outlets:
                    self._keep([chain.sent()])
                    self._closing.append(Closing(chain.outlet, chain))
            functions = zip(running.functions, running.counts(), strict=True)
            self._keep(counts for f, counts in functions if id(f.stage) not in stages)

    def _close_unused(self, chain: FlowChain, used: set[int]) -> None:
        if id(chain.outlet) not in used:
            chain.outlet.stop()
            self._closing.append(Closing(chain.outlet))

    # -- running

    def start(self) -> None:
        """Start the workers, or start them again."""
        for worker in self.workers:
            worker.go()
        self._threads = [threading.Thread(target=w.run, name="worker", daemon=True) for w in self.workers]
        for thread in self._threads:
            thread.start()

    def _drained(self, seconds: float | None) -> bool:
        """Wait until the queues are empty and the workers have ended; False: they have not within that time."""
        for worker in self.workers:
            worker.drain()
        end = None if seconds is None else time.monotonic() + seconds
        for thread in self._threads:
            thread.join(None if end is None else max(end - time.monotonic(), 0))
        if all(not thread.is_alive() for thread in self._threads):
            return True
        for worker in self.workers:
            worker.go()
        for number, thread in enumerate(self._threads):
            if not thread.is_alive():
                self._threads[number] = threading.Thread(target=self.workers[number].run, name="worker", daemon=True)
                self._threads[number].start()
        return False

    def stop(self) -> None:
        """After a signal: wait for no full queue any more.  A handler of a signal may call it."""
        self._stopped = True
        if self.wait:
            for classifier in self.classifiers:
                classifier.stop()
            self._stop_outlets()

    def _stop_outlets(self) -> None:
        for running in self.flows:
            for chain in running.chains:
                chain.outlet.stop()

    def close(self) -> None:
        """The input has ended: deliver what the queues and functions have; after `stop` only for a while.

        Raises ConfluoError for records that were not delivered.
        """
        with self._lock:
            self._drained(None)
            if self._stopped:
                self._stop_outlets()
            for running in self.flows:
                for chain in running.chains:
                    chain.end_all()
            closing = [Closing(chain.outlet) for running in self.flows for chain in running.chains]
            for one in [*self._closing, *closing]:
                one.join()
            self._stopped = True
        problems = [one.problem for one in [*self._closing, *closing] if one.problem is not None]
        if problems:
            raise problems[0]

    def report(self) -> None:
        """Report trouble of places.  Raises ConfluoError for a place that will take no more."""
        for running in list(self.flows):
            for chain in running.chains:
                chain.outlet.report()

    # -- counters

    def rows(self) -> list[StageCount]:
        """The stages, in the order in which records pass them; their counters since the run began."""
        with self._lock:
            now = list(self.receive())
            for lane, c in enumerate(self.classifiers):
                taken, filtered = c.taken, c.unmatched
                now.append(StageCount("classify", "", lane, taken, taken - filtered, filtered))
            now += [self._queue(running) for running in self.flows]
            chains = [chain for running in self.flows for chain in running.chains]
            now += [counts for running in self.flows for counts in running.counts()]
            now += [c for running in self.flows if running.windows is not None for c in running.windows.counts()]
            now += [chain.sent() for chain in chains]
            now += [c.delivered() for c in [*(c.chain for c in self._closing if c.chain is not None), *chains]]
            return sorted(_sums([*self._past.values(), *now]), key=self._place)

    def _place(self, c: StageCount) -> float:
        """Where a stage is in the order of the stages."""
        in_lane = c.stage == "function" and c.name in self._before_queues
        return ORDER.index("queue") - 0.5 if in_lane else ORDER.index(c.stage)

    def drops(self) -> dict[tuple[str, str], int]:
        """{(stage, flow): records that it has lost since the run began}."""
        found: dict[tuple[str, str], int] = {}
        for c in self.rows():
            if c.dropped and c.stage in ("queue", "function", "send"):
                key = c.stage, c.name.partition("/")[0]
                found[key] = found.get(key, 0) + c.dropped
        return found

    def tell_lost(self, ring: int) -> None:
        """Have messages count what never came to their sinks: ``ring`` packets, and records of full queues.

        The flow of a packet that the ring dropped is not known: the first flow of each place says them.
        """
        drops, places = self.drops(), set()
        for running in self.flows:
            lost = drops.get(("queue", running.flow.name), 0)
            if running.flow.to not in places:
                places.add(running.flow.to)
                lost += ring
            running.chains[0].outlet.sink.before = lost

    def _queue(self, running: RunningFlow) -> StageCount:
        """Records of a flow from its lanes to its workers."""
        given = sum(end.taken for _, end in running.ends)
        dropped = sum(route.dropped for route in running.routes)
        taken = sum(route.taken for route in running.routes)
        row = max(running.flow.batch.layout.row_bytes, 1)
        space = min(queue.free // row for w in running.workers for queue in self.workers[w].queues)
        queued = max(taken - dropped - given, 0)
        return StageCount("queue", running.flow.name, 0, taken, given, 0, dropped, queued, space)

    def _keep(self, counts: Iterable[StageCount]) -> None:
        ended = [c._replace(queued=0, space=0) for c in counts]
        self._past = {(c.stage, c.name, c.pipeline): c for c in _sums([*self._past.values(), *ended])}


class Closing:
    """Closes an outlet in a thread; ``problem``: its error.  ``chain``: for its counters."""

    def __init__(self, outlet: Outlet, chain: FlowChain | None = None) -> None:
        self.chain = chain
        self.problem: ConfluoError | None = None
        self._outlet = outlet
        self._thread = threading.Thread(target=self._close, name="closing", daemon=True)
        self._thread.start()

    def _close(self) -> None:
        try:
            self._outlet.close()
        except ConfluoError as e:
            self.problem = e

    def join(self) -> None:
        self._thread.join()


ORDER = ("receive", "fetch", "classify", "queue", "function", "send", "deliver")


def _sums(counts: Sequence[StageCount]) -> list[StageCount]:
    """One row for each stage, name and pipeline."""
    found: dict[tuple[str, str, int], StageCount] = {}
    for c in counts:
        key = (c.stage, c.name, c.pipeline)
        old = found.get(key)
        if old is None:
            found[key] = c
            continue
        found[key] = StageCount(
            *key,
            old.taken + c.taken,
            old.given + c.given,
            old.filtered + c.filtered,
            old.dropped + c.dropped,
            old.queued + c.queued,
            max(old.space, c.space),
        )
    return [*found.values()]


def goes_on(old: RunningFlow, new: RunningFlow) -> bool:
    """Whether the windows that lanes decide do."""
    return old.windows is not None and new.windows is not None and old.windows.clock is new.windows.clock


def differences(old: Sequence[StreamFlow], new: Sequence[StreamFlow]) -> list[str]:
    """A line for each flow that comes, goes or changes."""
    before, after = {f.name: f for f in old}, {f.name: f for f in new}
    lines = [f"flow '{name}': removed" for name in before if name not in after]
    lines += [f"flow '{name}': added" for name in after if name not in before]
    lines += [f"flow '{n}': changed" for n, f in after.items() if n in before and before[n] != f]
    if not lines and [*before] != [*after]:
        lines = ["the order of the flows: changed"]
    return lines
