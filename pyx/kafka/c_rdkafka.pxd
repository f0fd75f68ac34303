# librdkafka: see c_rdkafka.h.

from libc.stdint cimport int32_t, int64_t

cdef extern from "c_rdkafka.h" nogil:
    ctypedef struct rd_kafka_t:
        pass
    ctypedef struct rd_kafka_conf_t:
        pass
    ctypedef struct rd_kafka_topic_t:
        pass
    ctypedef struct rd_kafka_message_t:
        int err
        int32_t partition
        void* payload
        size_t len
        void* key
        size_t key_len
        int64_t offset
        void* _private
    enum:
        PRODUCER "CFL_RK_PRODUCER"
        CONF_OK "CFL_RK_CONF_OK"
        MSG_FREE "CFL_RK_FREE"
        MSG_COPY "CFL_RK_COPY"
        QUEUE_FULL "CFL_RK_QUEUE_FULL"
    ctypedef void (*on_delivery)(rd_kafka_t*, const rd_kafka_message_t*, void*) noexcept nogil
    ctypedef void (*on_error)(rd_kafka_t*, int, const char*, void*) noexcept nogil
    ctypedef void (*on_log)(const rd_kafka_t*, int, const char*, const char*) noexcept nogil
    ctypedef struct RdKafka "cfl_rdkafka":
        const char* (*version_str)() noexcept nogil
        rd_kafka_conf_t* (*conf_new)() noexcept nogil
        void (*conf_destroy)(rd_kafka_conf_t*) noexcept nogil
        int (*conf_set)(rd_kafka_conf_t*, const char*, const char*, char*, size_t) noexcept nogil
        void (*conf_set_dr_msg_cb)(rd_kafka_conf_t*, on_delivery) noexcept nogil
        void (*conf_set_error_cb)(rd_kafka_conf_t*, on_error) noexcept nogil
        void (*conf_set_log_cb)(rd_kafka_conf_t*, on_log) noexcept nogil
        void (*conf_set_opaque)(rd_kafka_conf_t*, void*) noexcept nogil
        rd_kafka_t* (*create)(int, rd_kafka_conf_t*, char*, size_t) noexcept nogil
        void (*destroy)(rd_kafka_t*) noexcept nogil
        void* (*opaque)(const rd_kafka_t*) noexcept nogil
        rd_kafka_topic_t* (*topic_new)(rd_kafka_t*, const char*, void*) noexcept nogil
        void (*topic_destroy)(rd_kafka_topic_t*) noexcept nogil
        int (*produce)(rd_kafka_topic_t*, int32_t, int, void*, size_t, const void*, size_t, void*) noexcept nogil
        int (*produce_batch)(rd_kafka_topic_t*, int32_t, int, rd_kafka_message_t*, int) noexcept nogil
        int (*poll)(rd_kafka_t*, int) noexcept nogil
        int (*flush)(rd_kafka_t*, int) noexcept nogil
        int (*purge)(rd_kafka_t*, int) noexcept nogil
        int (*outq_len)(rd_kafka_t*) noexcept nogil
        int (*last_error)() noexcept nogil
        const char* (*err2str)(int) noexcept nogil
        const char* (*err2name)(int) noexcept nogil
        int (*fatal_error)(rd_kafka_t*, char*, size_t) noexcept nogil
    const char* rdkafka_load "cfl_rdkafka_load"(RdKafka*, const char*)
