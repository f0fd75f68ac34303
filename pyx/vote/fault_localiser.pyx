"""Components to blame for the losses of a tally, by votes, coverage or likelihood, as vote/voting.py defines them."""

from collections import namedtuple
from libc.math cimport exp, log, log1p
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
from confluo_tools.core.vote.flow_tally cimport NONE, WHOLE, FlowTally, Seen, part_of, vote_of, votes_for
from confluo_tools.core.vote.healthy_pairs cimport HealthyPairs
cimport cython

cdef enum:
    GRID = 16                           # drop rates that are tried where only shares of paths are known
    ROUNDS = 5
    LEFT_OUT = 0xFFFFFFFE               # in the place of a component that explains a flow
    MIN_SEVERE = 5                      # packets

cdef double LOWEST = -1e300

Crossing = namedtuple("Crossing", ("flows", "lost", "sent", "healthy"))
Explained = namedtuple("Explained", ("flows", "lost", "sent", "dead"))
Waiting = namedtuple("Waiting", ("flows", "votes"))
Choice = namedtuple("Choice", ("component", "votes"))


cdef inline bint _is_severe(const Seen* s, double share) noexcept nogil:
    return s.dead or s.lost >= MIN_SEVERE and <double>s.lost >= share * <double>s.sent


@cython.final
cdef class FaultLocaliser:
    """Fault localisation in one tally.

    ``routes``: of healthy flows without paths, by their pair of ToRs, [(chance, the components that they cross with
    it)]; a component is a << 32 | b, or a switch.
    """

    cdef readonly FlowTally tally
    cdef uint32_t links                 # components
    cdef uint64_t* start                # of the flows of each
    cdef uint32_t* member
    cdef uint64_t* vote0                # votes before any were taken back, in parts of WHOLE
    cdef uint32_t* by                   # of each flow: the component that explains it, or NONE
    cdef uint32_t* back                 # of each flow: the component on its way back that explains it + 1, or 0
    cdef uint8_t* blamed
    cdef double* shared                 # packets that healthy flows sent through a component, in the mean
    cdef double* weight                 # of each flow, in the model
    cdef double* score
    cdef double* lost                   # of unexplained flows, by component
    cdef double* sent                   # with what was sent by healthy ones
    cdef double* grid                   # GRID log-likelihoods of healthy flows for each component
    cdef double rate_of[GRID]
    cdef readonly HealthyPairs healthy  # flows without loss and without a known path
    cdef readonly double p_g, p_b, prior
    cdef double severe                  # flows that lost a smaller share of their packets are left out; 0: none is

    def __cinit__(self, FlowTally tally not None, routes=None):
        cdef uint64_t n = tally.flows, total = 0, i, j
        cdef uint32_t c
        cdef Seen* s
        self.tally, self.links = tally, tally.table.count
        self.start = <uint64_t*>calloc(self.links + 2, 8)
        self.vote0 = <uint64_t*>calloc(self.links + 1, 8)
        self.by = <uint32_t*>malloc((n + 1) * 4)
        self.back = <uint32_t*>calloc(n + 1, 4)
        self.blamed = <uint8_t*>calloc(self.links + 1, 1)
        self.shared = <double*>calloc(self.links + 1, 8)
        self.weight = <double*>calloc(n + 1, 8)
        self.score = <double*>calloc(self.links + 1, 8)
        self.lost = <double*>calloc(self.links + 1, 8)
        self.sent = <double*>calloc(self.links + 1, 8)
        for i in range(n):
            total += tally.seen[i].n
        self.member = <uint32_t*>malloc((total + 1) * 4)
        if (self.start == NULL or self.vote0 == NULL or self.by == NULL or self.back == NULL
                or self.blamed == NULL or self.shared == NULL or self.weight == NULL
                or self.score == NULL or self.lost == NULL or self.sent == NULL or self.member == NULL):
            raise MemoryError(f"{n} flows with loss")
        with nogil:
            for i in range(n):
                s = &tally.seen[i]
                for j in range(s.n):
                    c = tally.part[s.start + j]
                    self.start[c + 2] += 1
                    self.vote0[c] += vote_of(s, j)
            for i in range(2, <uint64_t>self.links + 2):
                self.start[i] += self.start[i - 1]
            for i in range(n):
                s = &tally.seen[i]
                for j in range(s.n):
                    c = tally.part[s.start + j]
                    self.member[self.start[c + 1]] = <uint32_t>i
                    self.start[c + 1] += 1
        self._clear()
        self.healthy = HealthyPairs(tally, routes or {})
        self.healthy.add_packets(self.shared)

    def __dealloc__(self):
        free(self.start)
        free(self.member)
        free(self.vote0)
        free(self.by)
        free(self.back)
        free(self.blamed)
        free(self.shared)
        free(self.weight)
        free(self.score)
        free(self.lost)
        free(self.sent)
        free(self.grid)

    cdef void _clear(self) noexcept nogil:
        memset(self.blamed, 0, self.links)
        cdef uint64_t i
        for i in range(self.tally.flows):
            self.by[i] = self.back[i] - 1 if self.back[i] else NONE
            if self.severe > 0 and self.by[i] == NONE and not _is_severe(&self.tally.seen[i], self.severe):
                self.by[i] = LEFT_OUT

    cdef uint32_t _best(self, const double* score) noexcept nogil:
        # The largest, of those not blamed that have flows; of equals the smallest key.  NONE: there is none.
        cdef uint32_t i, best = NONE
        for i in range(self.links):
            if self.blamed[i] or self.start[i] == self.start[i + 1]:
                continue
            if best == NONE or score[i] > score[best] or (
                    score[i] == score[best] and self.tally.table.keys[i] < self.tally.table.keys[best]):
                best = i
        return best

    # -- 007

    def vote(self, double threshold, double floor, *, bint remove=True, bint running=True):
        """Algorithm 1: [(component, votes at its turn)].  ``remove``: flows it explains; else nothing is adjusted."""
        cdef uint64_t* votes = <uint64_t*>malloc((<size_t>self.links + 1) * 8)
        cdef uint64_t left = 0, first, i, j, w
        cdef uint32_t best, c, f
        cdef Seen* s
        if votes == NULL:
            raise MemoryError
        out = []
        try:
            self._clear()
            memcpy(votes, self.vote0, <size_t>self.links * 8)
            for i in range(self.tally.flows if remove else 0):
                s = &self.tally.seen[i]
                for j in range(s.n if self.by[i] != NONE else 0):
                    votes[self.tally.part[s.start + j]] -= vote_of(s, j)
            for i in range(self.links):
                left += votes[i]
            first = left
            while True:
                with nogil:
                    for i in range(self.links):
                        self.score[i] = <double>votes[i]
                    best = self._best(self.score)
                if best == NONE or votes[best] == 0 or votes[best] <= floor * WHOLE:
                    break
                if votes[best] < threshold * (left if running and remove else first):
                    break
                out.append((best, <double>votes[best] / WHOLE))
                with nogil:
                    self.blamed[best] = 1
                    for i in range(self.start[best], self.start[best + 1]):
                        f = self.member[i]
                        if self.by[f] != NONE:
                            continue
                        self.by[f] = best
                        if not remove:
                            continue
                        s = &self.tally.seen[f]
                        for j in range(s.n):
                            c, w = self.tally.part[s.start + j], vote_of(s, j)
                            votes[c] -= w
                            left -= w
            with nogil:
                for i in range(self.links):
                    self.score[i] = <double>votes[i] / WHOLE
            return out
        finally:
            free(votes)

    def explain(self, list blamed):
        """Set the state after these components were blamed, in this order."""
        cdef uint64_t i
        cdef uint32_t c
        self._clear()
        for number in blamed:
            c = number
            if c >= self.links:
                raise IndexError(number)
            self.blamed[c] = 1
            for i in range(self.start[c], self.start[c + 1]):
                if self.by[self.member[i]] == NONE:
                    self.by[self.member[i]] = c

    def explain_back(self, flows, uint32_t number):
        """These flows lost acknowledgements on component ``number``; it explains them from now on, in every model."""
        cdef uint64_t f
        if number >= self.links:
            raise IndexError(number)
        for f in flows:
            if f >= self.tally.flows:
                raise IndexError(f)
            self.back[f] = number + 1

    def only_severe(self, double share):
        """From now on leave out flows that live and lost less than this share of their packets; 0: none.

        Returns the share before.
        """
        before, self.severe = self.severe, share
        return before

    def unexplained(self):
        """The numbers of the flows that no component explains."""
        cdef uint64_t i
        return [i for i in range(self.tally.flows) if self.by[i] == NONE]

    def members(self, uint32_t number):
        """The numbers of the flows that may have lost packets on component ``number``."""
        cdef uint64_t i
        if number >= self.links:
            raise IndexError(number)
        return [self.member[i] for i in range(self.start[number], self.start[number + 1])]

    def cover(self):
        """Algorithm 2: [(component, flows it explains)]."""
        cdef uint32_t best
        cdef uint64_t i
        self._clear()
        out = []
        for i in range(self.links):
            self.score[i] = <double>(self.start[i + 1] - self.start[i])
        while True:
            with nogil:
                best = self._best(self.score)
            if best == NONE or self.score[best] == 0:
                return out
            out.append((best, self.score[best]))
            with nogil:
                self._take(best, False)

    cdef void _take(self, uint32_t best, bint weighted) noexcept nogil:
        # `best` is blamed: what it explains does not count for others any more.
        cdef uint64_t i, j
        cdef uint32_t f, c
        cdef double part
        cdef Seen* s
        self.blamed[best] = 1
        for i in range(self.start[best], self.start[best + 1]):
            f = self.member[i]
            if self.by[f] != NONE:
                continue
            self.by[f] = best
            s = &self.tally.seen[f]
            for j in range(s.n):
                c, part = self.tally.part[s.start + j], part_of(s, j)
                if not weighted:
                    self.score[c] -= 1.0
                if votes_for(s, j):
                    if weighted:
                        self.score[c] -= part * self.weight[f]
                    self.lost[c] -= part * <double>s.lost
                    self.sent[c] -= part * <double>s.sent

    # -- likelihood

    def mle(self, double p_b, double p_g, double prior):
        """Greedy maximum likelihood with given drop rates: [(component, logarithm of the odds)]."""
        cdef double up = log(p_b / p_g), down = log1p(-p_b) - log1p(-p_g)
        cdef FlowTally t = self.tally
        cdef uint32_t best, c
        cdef uint64_t i, j
        cdef Seen* s
        if not 0 < p_g < p_b < 1:
            raise ValueError(f"p_g {p_g}, p_b {p_b}")
        self.p_b, self.p_g, self.prior = p_b, p_g, prior
        out = []
        with nogil:
            self._clear()
            self._packets()
            for i in range(self.links):
                self.score[i] = prior + <double>t.good[i] * down
            self.healthy.add_likelihood(p_b, p_g, self.score, 1)
            for i in range(t.flows):
                s = &t.seen[i]
                self.weight[i] = <double>s.lost * up + <double>(s.sent - s.lost) * down
                for j in range(s.n if self.by[i] == NONE else 0):
                    c = t.part[s.start + j]
                    if votes_for(s, j):
                        self.score[c] += part_of(s, j) * self.weight[i]
        while True:
            with nogil:
                best = self._best(self.score)
            if best == NONE or self.score[best] <= 0 or self.lost[best] < 0.5:
                return out
            out.append((best, self.score[best]))
            with nogil:
                self._take(best, True)

    cdef void _packets(self) noexcept nogil:
        cdef uint64_t i, j
        cdef uint32_t c
        cdef Seen* s
        for i in range(self.links):
            self.lost[i], self.sent[i] = 0, <double>self.tally.good[i] + self.shared[i]
        for i in range(self.tally.flows):
            s = &self.tally.seen[i]
            for j in range(s.n if self.by[i] == NONE else 0):
                c = self.tally.part[s.start + j]
                if votes_for(s, j):
                    self.lost[c] += part_of(s, j) * <double>s.lost
                    self.sent[c] += part_of(s, j) * <double>s.sent

    cdef void _ratios(self, double p_g, double prior, double ratio) noexcept nogil:
        # The score of each component at the drop rate that suits it best.
        cdef uint32_t i
        cdef int k
        cdef double p, n, b, value, g, least = p_g * ratio
        for i in range(self.links):
            b, n = self.lost[i], self.sent[i]
            if self.blamed[i] or b < 0.5:
                self.score[i] = LOWEST
                continue
            p = min(b / n, 0.999999)
            if self.healthy.pairs == 0:
                self.score[i] = LOWEST if p <= least else (
                    prior + b * log(p / p_g) + (n - b) * (log1p(-p) - log1p(-p_g)))
                continue
            g = n - b - self.shared[i]  # those of known paths
            value = LOWEST
            for k in range(GRID):
                p = self.rate_of[k]
                if p > least:
                    value = max(value, prior + b * log(p / p_g) + g * (log1p(-p) - log1p(-p_g))
                                + self.grid[<size_t>i * GRID + k])
            self.score[i] = value

    cdef int _pass(self, double* p_g, double prior, double ratio, bint moving, uint32_t* out, double* score,
                   uint32_t most) noexcept nogil:
        # One greedy run; how many were blamed.  `moving`: the rate of good links follows what is left.
        cdef double lost = <double>self.tally.lost, sent = <double>self.tally.sent, p = p_g[0], of = 0
        cdef uint32_t best, n = 0
        cdef uint64_t i
        cdef int k
        self._clear()
        for i in range(self.tally.flows):
            if self.by[i] != NONE:  # on their way back
                lost, sent = lost - <double>self.tally.seen[i].lost, sent - <double>self.tally.seen[i].sent
        self._packets()
        while n < most:
            # The costly part: not for every little step.
            if self.healthy.pairs and (n == 0 or p < 0.9 * of or p > 1.1 * of):
                of = p
                memset(self.grid, 0, <size_t>self.links * GRID * 8)
                for k in range(GRID):
                    self.rate_of[k] = min(0.999, max(p, 1e-9) * exp(log(0.9 / max(p, 1e-9)) * (k + 0.5) / GRID))
                    self.healthy.add_likelihood(self.rate_of[k], p, self.grid + k, GRID)
            self._ratios(p, prior, ratio)
            best = self._best(self.score)
            if best == NONE or self.score[best] <= 0:
                break
            out[n], score[n] = best, self.score[best]
            n += 1
            lost -= self.lost[best]
            sent = max(sent - self.sent[best], lost)
            self._take(best, False)
            if moving:
                p = min((lost + 0.5) / (sent + 1), 0.5)
        p_g[0] = min((lost + 0.5) / (sent + 1), 0.5)
        return <int>n

    def fit(self, double prior, double ratio):
        """Greedy maximum likelihood, the drop rate of each bad component and that of good paths fitted.

        The rate of good paths begins as that of all flows and falls with each component that is blamed; then the run
        is repeated with the rate that was found until both agree.  ``ratio``: how much worse than that bad is.
        """
        cdef uint32_t* picks = <uint32_t*>malloc((<size_t>self.links + 1) * 4)
        cdef double* score = <double*>malloc((<size_t>self.links + 1) * 8)
        cdef double p_g, before
        cdef int n, i
        try:
            if picks == NULL or score == NULL:
                raise MemoryError
            if self.healthy.pairs and self.grid == NULL:
                self.grid = <double*>malloc(<size_t>self.links * GRID * 8)
                if self.grid == NULL:
                    raise MemoryError
            self.prior, self.p_b = prior, 0
            p_g = min((<double>self.tally.lost + 0.5) / (<double>self.tally.sent + 1), 0.5)
            with nogil:
                n = self._pass(&p_g, prior, 1, True, picks, score, self.links)
            last = None
            for _ in range(ROUNDS):
                before = p_g
                with nogil:
                    n = self._pass(&p_g, prior, ratio, False, picks, score, self.links)
                found = [picks[i] for i in range(n)]
                if found == last:
                    break
                last = found
            self.p_g = before
            return [(picks[i], score[i]) for i in range(n)]
        finally:
            free(picks)
            free(score)

    # -- what came out

    def votes_of(self, uint32_t number):
        """Votes of a component before any were taken back."""
        if number >= self.links:
            raise IndexError(number)
        return <double>self.vote0[number] / WHOLE

    def left(self):
        """[score] of all components after the last that was blamed."""
        cdef uint32_t i
        return [self.score[i] for i in range(self.links)]

    def crossing(self, uint32_t number):
        """Flows with loss through a component, packets that they lost and sent, packets that healthy flows sent."""
        cdef uint64_t i, lost = 0, sent = 0
        if number >= self.links:
            raise IndexError(number)
        for i in range(self.start[number], self.start[number + 1]):
            lost += self.tally.seen[self.member[i]].lost
            sent += self.tally.seen[self.member[i]].sent
        return Crossing(self.start[number + 1] - self.start[number], lost, sent,
                        <double>self.tally.good[number] + self.shared[number])

    def waiting(self, uint32_t number):
        """Unexplained flows with loss through a component, and their votes for it."""
        cdef uint64_t i, n = 0, votes = 0
        if number >= self.links:
            raise IndexError(number)
        for i in range(self.start[number], self.start[number + 1]):
            if self.by[self.member[i]] == NONE:
                n += 1
                votes += self._vote(&self.tally.seen[self.member[i]], number)
        return Waiting(n, <double>votes / WHOLE)

    cdef uint64_t _vote(self, const Seen* s, uint32_t number) noexcept nogil:
        cdef uint64_t j
        for j in range(s.n):
            if self.tally.part[s.start + j] == number:
                return vote_of(s, j)
        return 0

    def explained(self, uint32_t number):
        """Flows that this component explains, packets that they lost and sent, and how many of them died."""
        cdef uint64_t i, lost = 0, sent = 0, n = 0, dead = 0
        cdef uint32_t f
        if number >= self.links:
            raise IndexError(number)
        for i in range(self.start[number], self.start[number + 1]):
            f = self.member[i]
            if self.by[f] == number:
                n += 1
                dead += self.tally.seen[f].dead
                lost += self.tally.seen[f].lost
                sent += self.tally.seen[f].sent
        return Explained(n, lost, sent, dead)

    def by_votes(self, uint64_t number, double lone=-1.0):
        """The component of the path with most votes; -1 (noise) if it has only those of the flow, or ``lone``."""
        cdef Seen* s
        cdef uint32_t best = NONE, c
        cdef uint64_t j, most = 0, own
        if number >= self.tally.flows:
            raise IndexError(number)
        s = &self.tally.seen[number]
        own = <uint64_t>WHOLE // max(s.hops, 1)
        for j in range(s.n):
            c = self.tally.part[s.start + j]
            if best == NONE or self.vote0[c] > most or (
                    self.vote0[c] == most and self.tally.table.keys[c] < self.tally.table.keys[best]):
                best, most = c, self.vote0[c]
        if most <= (own if lone < 0 else lone * WHOLE):
            return Choice(-1, <double>most / WHOLE)
        return Choice(best, <double>most / WHOLE)

    def by_blame(self, uint64_t number):
        """The first component to be blamed that explains the flow, or -1: noise."""
        if number >= self.tally.flows:
            raise IndexError(number)
        return -1 if self.by[number] == NONE else <int>self.by[number]
