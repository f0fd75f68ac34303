"""A Kafka producer: messages of records, sent and counted without the interpreter lock."""

from libc.stdint cimport int32_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memset, strncpy
from c_atomic cimport load_relaxed, store_relaxed
from c_rdkafka cimport (
    CONF_OK, MSG_COPY, MSG_FREE, PRODUCER, QUEUE_FULL, RdKafka, rd_kafka_conf_t, rd_kafka_message_t, rd_kafka_t,
    rd_kafka_topic_t, rdkafka_load)
from confluo_tools.core.kafka.message cimport BUSY, REFUSED, SENT, Sent
cimport cython

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


cdef void _delivered(rd_kafka_t* rk, const rd_kafka_message_t* message, void* opaque) noexcept nogil:
    # Delivery report.  The private pointer of a message is the number of its records.
    cdef ProducerCounts* n = <ProducerCounts*>opaque
    cdef uint64_t records = <uint64_t><uintptr_t>message._private
    if message.err:
        n.failure = message.err
        _add(&n.failed, 1)
        _add(&n.records_failed, records)
    else:
        _add(&n.acked, 1)
        _add(&n.records_acked, records)
        _add(&n.bytes_acked, message.len)


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
        if self.rk != NULL:
            with nogil:
                library.purge(self.rk, 3)
                for i in range(self.topic_count):
                    library.topic_destroy(self.topics[i])
                library.destroy(self.rk)

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
                           <void*><uintptr_t>records) == 0:
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
