/* The part of librdkafka's interface that is used, resolved when the library is loaded.
 *
 * The library is found at run time (the one that confluent-kafka brings, or the system's), so building needs no
 * header of it.  Names, numbers and structures are those of rdkafka.h, which keeps them stable since 1.0.
 */
#pragma once
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;

typedef struct {
    int err;
    rd_kafka_topic_t *rkt;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *_private;
} rd_kafka_message_t;

enum { CFL_RK_PRODUCER = 0, CFL_RK_CONF_OK = 0, CFL_RK_FREE = 1, CFL_RK_COPY = 2, CFL_RK_QUEUE_FULL = -184 };

typedef struct {
    void *handle;
    const char *(*version_str)(void);
    rd_kafka_conf_t *(*conf_new)(void);
    void (*conf_destroy)(rd_kafka_conf_t *);
    int (*conf_set)(rd_kafka_conf_t *, const char *, const char *, char *, size_t);
    void (*conf_set_dr_msg_cb)(rd_kafka_conf_t *, void (*)(rd_kafka_t *, const rd_kafka_message_t *, void *));
    void (*conf_set_error_cb)(rd_kafka_conf_t *, void (*)(rd_kafka_t *, int, const char *, void *));
    void (*conf_set_log_cb)(rd_kafka_conf_t *, void (*)(const rd_kafka_t *, int, const char *, const char *));
    void (*conf_set_opaque)(rd_kafka_conf_t *, void *);
    rd_kafka_t *(*create)(int, rd_kafka_conf_t *, char *, size_t);
    void (*destroy)(rd_kafka_t *);
    void *(*opaque)(const rd_kafka_t *);
    rd_kafka_topic_t *(*topic_new)(rd_kafka_t *, const char *, void *);
    void (*topic_destroy)(rd_kafka_topic_t *);
    int (*produce)(rd_kafka_topic_t *, int32_t, int, void *, size_t, const void *, size_t, void *);
    int (*produce_batch)(rd_kafka_topic_t *, int32_t, int, rd_kafka_message_t *, int);
    int (*poll)(rd_kafka_t *, int);
    int (*flush)(rd_kafka_t *, int);
    int (*purge)(rd_kafka_t *, int);
    int (*outq_len)(rd_kafka_t *);
    int (*last_error)(void);
    const char *(*err2str)(int);
    const char *(*err2name)(int);
    int (*fatal_error)(rd_kafka_t *, char *, size_t);
} cfl_rdkafka;

/* Fill `k` from the library at `path`.  Returns NULL, or what is wrong. */
static const char *cfl_rdkafka_load(cfl_rdkafka *k, const char *path) {
    k->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!k->handle)
        return dlerror();
#define CFL_RK(member, symbol)                                      \
    if (!(*(void **)&k->member = dlsym(k->handle, "rd_kafka_" symbol))) \
        return "no function rd_kafka_" symbol;
    CFL_RK(version_str, "version_str")
    CFL_RK(conf_new, "conf_new")
    CFL_RK(conf_destroy, "conf_destroy")
    CFL_RK(conf_set, "conf_set")
    CFL_RK(conf_set_dr_msg_cb, "conf_set_dr_msg_cb")
    CFL_RK(conf_set_error_cb, "conf_set_error_cb")
    CFL_RK(conf_set_log_cb, "conf_set_log_cb")
    CFL_RK(conf_set_opaque, "conf_set_opaque")
    CFL_RK(create, "new")
    CFL_RK(destroy, "destroy")
    CFL_RK(opaque, "opaque")
    CFL_RK(topic_new, "topic_new")
    CFL_RK(topic_destroy, "topic_destroy")
    CFL_RK(produce, "produce")
    CFL_RK(produce_batch, "produce_batch")
    CFL_RK(poll, "poll")
    CFL_RK(flush, "flush")
    CFL_RK(purge, "purge")
    CFL_RK(outq_len, "outq_len")
    CFL_RK(last_error, "last_error")
    CFL_RK(err2str, "err2str")
    CFL_RK(err2name, "err2name")
    CFL_RK(fatal_error, "fatal_error")
#undef CFL_RK
    return NULL;
}
