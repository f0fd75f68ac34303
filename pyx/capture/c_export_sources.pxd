# The exporters that send records, and what they said before: templates, sampling rates, names of interfaces, sequence.
#
# Anybody can send datagrams with any source address, so all of it is bounded: exporters, templates, names, bytes.  An
# exporter is forgotten when its place is needed: first those that never sent a record, of them the one that was silent
# for the longest time.  So a flood of new addresses does not push out the exporters that work.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memmove, memset
from c_hash_table cimport (
    HashTable, mum, slots_add, slots_home, slots_next, slots_remove, slots_reserve, table_free)
from c_export_record cimport MS, NAME_BYTES
from c_export_template cimport Op, Template

cdef enum:
    MAX_EXPORTERS = 16384
    MAX_TEMPLATES = 2048        # of an exporter
    MAX_OWN_BYTES = 1 << 22     # of the templates of an exporter
    MAX_SAMPLERS = 64           # of an exporter
    MAX_NAMES = 4096            # of the interfaces of an exporter
    MAX_STATE = 1 << 26         # bytes of templates and names of all exporters
    MAX_JUMP = 1 << 28          # of a sequence number; more is a new sequence
    MAX_LATE = 1 << 16          # of a sequence number that went back; more is a new sequence
    CLOCK_SLACK = 3000          # ms; NetFlow v9 has whole seconds
    UNPROVEN = 0
    PROVEN = 1
    UNUSED = 2

cdef extern from *:
    const uint32_t NO_EXPORTER "UINT32_MAX"

cdef struct InterfaceName:
    uint32_t number
    uint8_t text[NAME_BYTES]

cdef struct Exporter:
    uint64_t key[3]             # address, as of IPv6; port << 48 | protocol << 32 | source id
    Template** templates        # by id
    InterfaceName* names        # by number
    uint32_t template_count
    uint32_t template_room
    uint32_t name_count
    uint32_t name_room
    size_t bytes                # of the templates
    uint32_t sampler[MAX_SAMPLERS]
    uint32_t rate[MAX_SAMPLERS]
    uint32_t samplers
    uint32_t common_rate        # where no sampler is named; 0: unknown
    int64_t boot                # ns since 1970, if an options record said so
    uint32_t list               # UNPROVEN, PROVEN or UNUSED
    uint32_t before             # in its list
    uint32_t after
    uint32_t generation         # of its place: how often it was forgotten
    uint32_t waiting            # sets of data that wait for a template
    bint follows                # `expected` is known
    uint32_t expected           # sequence number of the next datagram
    uint32_t uptime             # of the last datagram
    int64_t exported
    uint64_t datagrams
    uint64_t records
    uint64_t lost               # records (NetFlow v5, IPFIX) or datagrams (NetFlow v9, sFlow) by the sequence numbers
    uint64_t late               # datagrams that came after a later one
    uint64_t restarts

cdef struct Sources:
    HashTable index
    Exporter* exporter          # MAX_EXPORTERS
    uint32_t first[3]           # of each list: the one silent for the longest time
    uint32_t last[3]
    uint32_t count
    uint32_t made
    size_t bytes                # of templates and names
    uint64_t clock
    uint64_t evicted
    uint64_t evicted_templates


cdef inline bint sources_init(Sources* s, const uint64_t* seed) noexcept nogil:
    cdef int i
    memset(s, 0, sizeof(Sources))
    s.index.seed[0], s.index.seed[1] = seed[0] | 1, seed[1] | 1
    for i in range(3):
        s.first[i] = s.last[i] = NO_EXPORTER
    s.exporter = <Exporter*>calloc(MAX_EXPORTERS, sizeof(Exporter))
    return s.exporter != NULL and slots_reserve(&s.index, MAX_EXPORTERS) == 0


cdef inline void sources_free(Sources* s) noexcept nogil:
    cdef uint32_t i
    for i in range(s.made):
        forget(s, &s.exporter[i])
    free(s.exporter)
    table_free(&s.index)
    s.exporter, s.made = NULL, 0


cdef inline uint64_t source_hash(const Sources* s, const uint64_t* key) noexcept nogil:
    return mum(mum(mum(key[0] ^ s.index.seed[0], s.index.seed[1]) ^ key[1], s.index.seed[1]) ^ key[2], s.index.seed[1])


cdef inline void _take_out(Sources* s, uint32_t number) noexcept nogil:
    cdef Exporter* e = &s.exporter[number]
    if e.before == NO_EXPORTER:
        s.first[e.list] = e.after
    else:
        s.exporter[e.before].after = e.after
    if e.after == NO_EXPORTER:
        s.last[e.list] = e.before
    else:
        s.exporter[e.after].before = e.before


cdef inline void _add_last(Sources* s, uint32_t number, uint32_t which) noexcept nogil:
    cdef Exporter* e = &s.exporter[number]
    e.list, e.before, e.after = which, s.last[which], NO_EXPORTER
    if e.before == NO_EXPORTER:
        s.first[which] = number
    else:
        s.exporter[e.before].after = number
    s.last[which] = number


cdef inline void forget_templates(Sources* s, Exporter* e) noexcept nogil:
    cdef uint32_t i
    for i in range(e.template_count):
        free(e.templates[i])
    s.bytes -= e.bytes
    e.template_count, e.bytes = 0, 0


cdef inline void forget(Sources* s, Exporter* e) noexcept nogil:
    """Forget all that an exporter said."""
    forget_templates(s, e)
    s.bytes -= e.name_room * sizeof(InterfaceName)
    free(e.templates)
    free(e.names)
    e.templates, e.names = NULL, NULL
    e.template_room = e.name_count = e.name_room = e.samplers = e.common_rate = 0
    e.boot = 0


cdef inline void evict(Sources* s, uint32_t number) noexcept nogil:
    cdef Exporter* e = &s.exporter[number]
    cdef uint32_t generation = e.generation + 1
    slots_remove(&s.index, source_hash(s, e.key), number)
    _take_out(s, number)
    forget(s, e)
    memset(e, 0, sizeof(Exporter))
    e.generation = generation
    _add_last(s, number, UNUSED)
    s.count -= 1
    s.evicted += 1


cdef inline void _evict_oldest(Sources* s) noexcept nogil:
    evict(s, s.first[UNPROVEN] if s.first[UNPROVEN] != NO_EXPORTER else s.first[PROVEN])


cdef inline uint32_t source_of(Sources* s, const uint64_t* key) noexcept nogil:
    """The number of the exporter with this key, which is new if it is not known."""
    cdef uint64_t hash = source_hash(s, key), at = slots_home(&s.index, hash)
    cdef uint32_t number
    cdef Exporter* e
    while True:
        number = slots_next(&s.index, hash, &at)
        if number == NO_EXPORTER:
            break
        e = &s.exporter[number]
        if e.key[0] == key[0] and e.key[1] == key[1] and e.key[2] == key[2]:
            if s.last[e.list] != number:
                _take_out(s, number)
                _add_last(s, number, e.list)
            return number
    if s.count == MAX_EXPORTERS:
        _evict_oldest(s)
    number = s.first[UNUSED]
    if number != NO_EXPORTER:
        _take_out(s, number)
    else:
        number = s.made
        s.made += 1
    e = &s.exporter[number]
    e.key[0], e.key[1], e.key[2] = key[0], key[1], key[2]
    slots_add(&s.index, hash, number)
    _add_last(s, number, UNPROVEN)
    s.count += 1
    return number


cdef inline void prove(Sources* s, uint32_t number) noexcept nogil:
    """The exporter sent a record."""
    if s.exporter[number].list == UNPROVEN:
        _take_out(s, number)
        _add_last(s, number, PROVEN)


cdef inline void keep_bound(Sources* s, uint32_t number) noexcept nogil:
    """Forget exporters, except this one, until what they said has room."""
    cdef uint32_t other
    cdef int which
    for which in range(2):
        other = s.first[which]
        while s.bytes > MAX_STATE and other != NO_EXPORTER:
            if other == number:
                other = s.exporter[other].after
                continue
            evict(s, other)
            other = s.first[which]


# -- templates

cdef inline size_t template_bytes(const Template* t) noexcept nogil:
    return sizeof(Template) + t.ops * sizeof(Op)


cdef inline uint32_t _place(const Exporter* e, uint16_t id) noexcept nogil:
    """Where the template is, or would be."""
    cdef uint32_t low = 0, high = e.template_count, middle
    while low < high:
        middle = (low + high) >> 1
        if e.templates[middle].id < id:
            low = middle + 1
        else:
            high = middle
    return low


cdef inline Template* find_template(Sources* s, Exporter* e, uint16_t id) noexcept nogil:
    cdef uint32_t at = _place(e, id)
    if at == e.template_count or e.templates[at].id != id:
        return NULL
    s.clock += 1
    e.templates[at].used = s.clock
    return e.templates[at]


cdef inline void _remove(Sources* s, Exporter* e, uint32_t at) noexcept nogil:
    cdef size_t size = template_bytes(e.templates[at])
    free(e.templates[at])
    e.template_count -= 1
    memmove(e.templates + at, e.templates + at + 1, (e.template_count - at) * sizeof(void*))
    e.bytes -= size
    s.bytes -= size


cdef inline void remove_template(Sources* s, Exporter* e, uint16_t id) noexcept nogil:
    cdef uint32_t at = _place(e, id)
    if at < e.template_count and e.templates[at].id == id:
        _remove(s, e, at)


cdef inline void _make_room(Sources* s, Exporter* e, size_t size) noexcept nogil:
    """Drop templates of the exporter that were not used for the longest time."""
    cdef uint32_t i, oldest
    while e.template_count and (e.template_count >= MAX_TEMPLATES or e.bytes + size > MAX_OWN_BYTES):
        oldest = 0
        for i in range(1, e.template_count):
            if e.templates[i].used < e.templates[oldest].used:
                oldest = i
        _remove(s, e, oldest)
        s.evicted_templates += 1


cdef inline bint put_template(Sources* s, uint32_t number, Template* t) noexcept nogil:
    """Keep the template, in place of one with its id; False: no memory, the template is freed."""
    cdef Exporter* e = &s.exporter[number]
    cdef uint32_t at, room
    cdef Template** grown
    remove_template(s, e, t.id)
    _make_room(s, e, template_bytes(t))
    if e.template_count == e.template_room:
        room = e.template_room * 2 if e.template_room else 4
        grown = <Template**>realloc(e.templates, room * sizeof(void*))
        if grown == NULL:
            free(t)
            return False
        e.templates, e.template_room = grown, room
    at = _place(e, t.id)
    memmove(e.templates + at + 1, e.templates + at, (e.template_count - at) * sizeof(void*))
    e.templates[at] = t
    e.template_count += 1
    e.bytes += template_bytes(t)
    s.bytes += template_bytes(t)
    s.clock += 1
    t.used = s.clock
    keep_bound(s, number)
    return True


# -- what options records say

cdef inline void set_rate(Exporter* e, bint named, uint32_t sampler, uint32_t rate) noexcept nogil:
    cdef uint32_t i
    if not named:
        e.common_rate = rate
        return
    for i in range(e.samplers):
        if e.sampler[i] == sampler:
            e.rate[i] = rate
            return
    if e.samplers < MAX_SAMPLERS:
        e.sampler[e.samplers], e.rate[e.samplers] = sampler, rate
        e.samplers += 1


cdef inline uint32_t rate_of(const Exporter* e, bint named, uint32_t sampler) noexcept nogil:
    """The rate of a sampler; 0: unknown.  The only sampler of an exporter is that of all its records."""
    cdef uint32_t i
    if named:
        for i in range(e.samplers):
            if e.sampler[i] == sampler:
                return e.rate[i]
    elif e.common_rate == 0 and e.samplers == 1:
        return e.rate[0]
    return e.common_rate


cdef inline uint32_t _name_place(const Exporter* e, uint32_t number) noexcept nogil:
    cdef uint32_t low = 0, high = e.name_count, middle
    while low < high:
        middle = (low + high) >> 1
        if e.names[middle].number < number:
            low = middle + 1
        else:
            high = middle
    return low


cdef inline const uint8_t* name_of(const Exporter* e, uint32_t number) noexcept nogil:
    """NAME_BYTES, or NULL."""
    cdef uint32_t at = _name_place(e, number)
    return e.names[at].text if at < e.name_count and e.names[at].number == number else NULL


cdef inline void set_name(Sources* s, uint32_t of, uint32_t number, const uint8_t* text, uint32_t size) noexcept nogil:
    """Keep the name of an interface: printable, at most NAME_BYTES; others have none."""
    cdef Exporter* e = &s.exporter[of]
    cdef uint32_t at = _name_place(e, number), room, i, n = 0
    cdef InterfaceName* grown
    while n < size and n < NAME_BYTES and 32 <= text[n] < 127:
        n += 1
    if n == 0:
        return
    if at == e.name_count or e.names[at].number != number:
        if e.name_count == MAX_NAMES:
            return
        if e.name_count == e.name_room:
            room = e.name_room * 2 if e.name_room else 16
            grown = <InterfaceName*>realloc(e.names, room * sizeof(InterfaceName))
            if grown == NULL:
                return
            s.bytes += (room - e.name_room) * sizeof(InterfaceName)
            e.names, e.name_room = grown, room
        memmove(e.names + at + 1, e.names + at, (e.name_count - at) * sizeof(InterfaceName))
        e.name_count += 1
        e.names[at].number = number
    memset(e.names[at].text, 0, NAME_BYTES)
    for i in range(n):
        e.names[at].text[i] = text[i]
    keep_bound(s, of)


# -- sequence numbers

cdef inline void new_sequence(Exporter* e) noexcept nogil:
    e.restarts += 1
    e.follows = False


cdef inline bint restarted(const Exporter* e, uint32_t uptime, int64_t exported) noexcept nogil:
    """Whether the exporter has started since its last datagram, by its clocks.

    The time since its start went back, and that start (modulo 2^32 ms, so it may wrap) is another one.
    """
    cdef uint32_t then, moved
    if e.datagrams == 0 or uptime >= e.uptime:
        return False
    then = <uint32_t>(e.exported // MS) - e.uptime
    moved = <uint32_t>(exported // MS) - uptime - then
    return moved > CLOCK_SLACK and -moved > CLOCK_SLACK


cdef inline bint see_sequence(Exporter* e, uint32_t sequence) noexcept nogil:
    """Count what is missing before this datagram.  True: the datagram is late, and was counted as missing."""
    cdef uint32_t ahead = sequence - e.expected, back = e.expected - sequence
    if not e.follows or ahead == 0:
        return False
    if ahead <= MAX_JUMP:
        e.lost += ahead
    elif back <= MAX_LATE and sequence:
        e.late += 1
        return True
    else:
        new_sequence(e)
    return False


cdef inline void end_sequence(Exporter* e, uint32_t sequence, uint32_t n, bint late, bint known) noexcept nogil:
    """The datagram had ``n`` of what is numbered; ``known``: this is certain."""
    if late:
        e.lost -= n if n < e.lost else e.lost
        return
    e.expected, e.follows = sequence + n, known
