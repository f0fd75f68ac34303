"""A Kafka producer: messages of records, sent and counted without the interpreter lock."""

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport memset, strncpy
from posix.stdlib cimport posix_memalign
from c_atomic cimport load_acquire, load_relaxed, store_relaxed, subtract32, swap
from c_rdkafka cimport (
    CONF_OK, MSG_COPY, MSG_FREE, PRODUCER, QUEUE_FULL, RdKafka, rd_kafka_conf_t, rd_kafka_message_t, rd_kafka_t,
    rd_kafka_topic_t, rdkafka_load)
from confluo_tools.core.kafka.message cimport BUSY, REFUSED, SENT, Sent
from confluo_tools.core.kafka.short_message cimport records_of, size_of
cimport cython

cdef enum:
    DONE = 100                          # times 10 ms for the reports of what is given up

cdef RdKafka library
cdef bint loaded = False


def load(str path not None):
    """Use the librdkafka at ``path``; returns its version.  The first that loads stays.  Raises OSError."""
    global loaded
    cdef const char* what
    if not loaded:
        what = rdkafka_load(&library, path.encode())
        if what != NULL:
            raise OSError(what.decode(errors="replace"))
        loaded = True
    return library.version_str().decode()


def error_name(int code):
    """The name of an error of librdkafka, as MSG_TIMED_OUT."""
    return library.err2name(code).decode() if loaded else str(code)


def error_text(int code):
    """What an error of librdkafka means."""
    return library.err2str(code).decode() if loaded else str(code)


cdef inline void _add(uint64_t* p, uint64_t n) noexcept nogil:
    store_relaxed(p, load_relaxed(p) + n)


cdef void _let_go(ProducerCounts* n, Slab* slab, uint32_t messages) noexcept nogil:
    """The client has done with this number of messages of the slab."""
    cdef uint64_t first
    if subtract32(&slab.held, messages):
        return
    first = load_acquire(&n.free)
    slab.next = <Slab*><uintptr_t>first
    while not swap(&n.free, &first, <uint64_t><uintptr_t>slab):
        slab.next = <Slab*><uintptr_t>first


cdef void _delivered(rd_kafka_t* rk, const rd_kafka_message_t* message, void* opaque) noexcept nogil:
    # Delivery report.  The private pointer of a message is twice the number of its records, and 1 more in a slab.
    cdef ProducerCounts* n = <ProducerCounts*>opaque
    cdef uint64_t records = <uint64_t><uintptr_t>message._private >> 1
    if message.err:
        n.failure = message.err
        _add(&n.failed, 1)
        _add(&n.records_failed, records)
        _add(&n.bytes_failed, message.len)
    else:
        _add(&n.acked, 1)
        _add(&n.records_acked, records)
        _add(&n.bytes_acked, message.len)
    if <uintptr_t>message._private & 1:
        _let_go(n, <Slab*>(<uintptr_t>message.payload & ~<uintptr_t>(SLAB - 1)), 1)


cdef void _troubled(rd_kafka_t* rk, int err, const char* reason, void* opaque) noexcept nogil:
    cdef ProducerCounts* n = <ProducerCounts*>opaque
    strncpy(n.text, reason, PROBLEM - 1)
    n.trouble = err


cdef void _silent(const rd_kafka_t* rk, int level, const char* facility, const char* text) noexcept nogil:
    pass


@cython.final
cdef class KafkaProducer:
    """A client of a Kafka cluster that sends.  ``settings``: {name of librdkafka: value}.

    `load` a library first.  Give messages from one thread, and serve from one; both may be the same.
    Raises ValueError for a setting that librdkafka does not take, and OSError when no client can be made.
    """

    def __cinit__(self, dict settings not None):
        cdef rd_kafka_conf_t* conf
        cdef char text[PROBLEM]
        if not loaded:
            raise OSError("librdkafka is not loaded")
        memset(&self.n, 0, sizeof(ProducerCounts))
        self.most_messages = int(settings.get("queue.buffering.max.messages", 100000))
        self.most_bytes = 1024 * int(settings.get("queue.buffering.max.kbytes", 1048576))
        conf = library.conf_new()
        for name, value in settings.items():
            if library.conf_set(conf, str(name).encode(), str(value).encode(), text, PROBLEM) != CONF_OK:
                library.conf_destroy(conf)
                raise ValueError(text.decode(errors="replace"))
        library.conf_set_opaque(conf, &self.n)
        library.conf_set_dr_msg_cb(conf, _delivered)
        library.conf_set_error_cb(conf, _troubled)
        library.conf_set_log_cb(conf, _silent)
        self.rk = library.create(PRODUCER, conf, text, PROBLEM)
        if self.rk == NULL:
            library.conf_destroy(conf)
            raise OSError(text.decode(errors="replace"))

    def __dealloc__(self):
        cdef int i
        cdef Slab* slab
        if self.rk != NULL:
            with nogil:
                library.purge(self.rk, 3)
                for _ in range(DONE):
                    if library.outq_len(self.rk) == 0:
                        break
                    library.poll(self.rk, 10)
                for i in range(self.topic_count):
                    library.topic_destroy(self.topics[i])
                library.destroy(self.rk)
        while self.n.free or self.spare != NULL:
            slab = self.slab()
            free(slab)

    def topic(self, str name not None):
        """The number of a topic, for `put`.  Raises OSError."""
        if self.topic_count == MAX_TOPICS:
            raise OSError(f"more than {MAX_TOPICS} topics")
        cdef rd_kafka_topic_t* t = library.topic_new(self.rk, name.encode(), NULL)
        if t == NULL:
            raise OSError(error_text(library.last_error()))
        self.topics[self.topic_count] = t
        self.topic_count += 1
        return self.topic_count - 1

    cdef Sent send(self, int topic, int32_t partition, void* value, size_t size, uint32_t records, const void* key,
                   size_t key_size, bint give) noexcept nogil:
        """Queue a message.  ``give``: the client frees ``value`` (of malloc) once it is SENT; otherwise it copies."""
        cdef int err
        if library.produce(self.topics[topic], partition, MSG_FREE if give else MSG_COPY, value, size, key, key_size,
                           <void*>(<uintptr_t>records << 1)) == 0:
            _add(&self.n.sent, 1)
            _add(&self.n.records_sent, records)
            _add(&self.n.bytes_sent, size)
            return SENT
        err = library.last_error()
        if err == QUEUE_FULL:
            _add(&self.n.busy, 1)
            return BUSY
        self.n.refusal = err
        return REFUSED

    cdef Slab* slab(self) noexcept nogil:
        """An empty slab; NULL if there is no memory."""
        cdef uint64_t first
        cdef Slab* slab
        cdef void* place
        if self.spare == NULL:
            first = load_acquire(&self.n.free)
            while first and not swap(&self.n.free, &first, 0):
                pass
            self.spare = <Slab*><uintptr_t>first
        if self.spare != NULL:
            slab = self.spare
            self.spare = slab.next
        elif posix_memalign(&place, SLAB, SLAB):
            return NULL
        else:
            slab = <Slab*>place
        slab.n, slab.used, slab.rows = 0, SLAB_HEAD, 0
        return slab

    cdef Sent send_slab(self, int topic, int32_t partition, Slab** slab, uint32_t* refused) noexcept nogil:
        """Queue all messages of a slab, in their order, or none.

        A slab that the client has taken is NULL afterwards, another one is empty.  ``refused``: records of messages
        that can never be sent.
        """
        cdef uint8_t* at = <uint8_t*>slab[0] + SLAB_HEAD
        cdef uint32_t n = slab[0].n, i, failed = 0
        # The messages of a slab that is half empty are copied: what is queued takes at most twice its bytes.
        cdef bint give = slab[0].used > SLAB // 2
        cdef uint64_t held = self.n.bytes_sent - load_relaxed(&self.n.bytes_acked) - load_relaxed(&self.n.bytes_failed)
        if (self.n.sent - load_relaxed(&self.n.acked) - load_relaxed(&self.n.failed) + n > self.most_messages
                or held + slab[0].used > self.most_bytes):
            _add(&self.n.busy, 1)
            return BUSY
        for i in range(n):
            memset(&self.batch[i], 0, sizeof(rd_kafka_message_t))
            self.batch[i].payload, self.batch[i].len = at, size_of(at)
            self.batch[i]._private = <void*>(<uintptr_t>records_of(at) << 1 | give)
            at += size_of(at)
        slab[0].held = n
        refused[0] = 0
        if <uint32_t>library.produce_batch(self.topics[topic], partition, 0 if give else MSG_COPY, self.batch, n) < n:
            for i in range(n):
                if self.batch[i].err:
                    self.n.refusal = self.batch[i].err
                    refused[0] += <uint32_t>(<uintptr_t>self.batch[i]._private >> 1)
                    failed += 1
        _add(&self.n.sent, n - failed)
        _add(&self.n.records_sent, slab[0].rows - refused[0])
        _add(&self.n.bytes_sent, slab[0].used - SLAB_HEAD)
        if not give:
            slab[0].n, slab[0].used, slab[0].rows = 0, SLAB_HEAD, 0
        else:
            if failed:
                _let_go(&self.n, slab[0], failed)
            slab[0] = NULL
        return SENT

    cdef int serve(self, int timeout) noexcept nogil:
        """Take delivery reports and errors, for up to ``timeout`` ms."""
        return library.poll(self.rk, timeout)

    def put(self, int topic, bytes value not None, *, int32_t partition=-1, bytes key=None, uint32_t records=1):
        """Queue a copy of one message: True, or False when the client's queue is full.

        Raises OSError when it can never be sent (too large, no such partition).
        """
        if not 0 <= topic < self.topic_count:
            raise IndexError(topic)
        cdef const char* k = <const char*>key if key is not None else NULL
        cdef const char* v = <const char*>value
        cdef size_t size = len(value), key_size = len(key) if key is not None else 0
        cdef Sent sent
        with nogil:
            sent = self.send(topic, partition, <void*>v, size, records, k, key_size, False)
        if sent == REFUSED:
            raise OSError(error_text(self.n.refusal))
        return sent == SENT

    def poll(self, int timeout=0):
        """Take delivery reports and errors, for up to ``timeout`` ms; returns how many."""
        cdef int n
        with nogil:
            n = self.serve(timeout)
        return n

    def flush(self, int timeout):
        """Send all that is queued, for up to ``timeout`` ms; returns the messages that are still queued."""
        cdef int left
        with nogil:
            library.flush(self.rk, timeout)
            left = library.outq_len(self.rk)
        return left

    def purge(self):
        """Give up all that is queued or on its way; each message is counted as failed."""
        with nogil:
            library.purge(self.rk, 3)
            library.poll(self.rk, 0)

    @property
    def queued(self):
        """Messages that are queued or on their way."""
        return library.outq_len(self.rk)

    @property
    def counts(self):
        """{what: number} of messages, their records and their bytes."""
        return {
            "sent": load_relaxed(&self.n.sent),
            "records_sent": load_relaxed(&self.n.records_sent),
            "bytes_sent": load_relaxed(&self.n.bytes_sent),
            "busy": load_relaxed(&self.n.busy),
            "acked": load_relaxed(&self.n.acked),
            "records_acked": load_relaxed(&self.n.records_acked),
            "bytes_acked": load_relaxed(&self.n.bytes_acked),
            "failed": load_relaxed(&self.n.failed),
            "records_failed": load_relaxed(&self.n.records_failed),
        }

    @property
    def failure(self):
        """Why the last message was given up, "" if none was."""
        return error_text(self.n.failure) if self.n.failure else ""

    @property
    def trouble(self):
        """The last error with a broker: (its name, what it said), or None."""
        return (error_name(self.n.trouble), (<bytes>self.n.text).decode(errors="replace")) if self.n.trouble else None

    @property
    def fatal(self):
        """The error after which this client sends no more, or ""."""
        cdef char text[PROBLEM]
        return text.decode(errors="replace") if library.fatal_error(self.rk, text, PROBLEM) else ""
