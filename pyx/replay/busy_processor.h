/* A thread of the lowest priority that keeps a processor from being idle. */
#ifndef CONFLUO_BUSY_PROCESSOR_H
#define CONFLUO_BUSY_PROCESSOR_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>

typedef struct {
    pthread_t thread;
    atomic_int over;
} busy_processor;

static void *busy_loop(void *argument) {
    busy_processor *busy = argument;
    while (!atomic_load_explicit(&busy->over, memory_order_relaxed)) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#endif
    }
    return NULL;
}

/* Begin on the processors of the calling thread.  0, or an error. */
static inline int busy_begin(busy_processor *busy) {
    struct sched_param lowest = {0};
    pthread_attr_t attributes;
    cpu_set_t processors;
    sigset_t all, before;
    int error;
    atomic_init(&busy->over, 0);
    if (sched_getaffinity(0, sizeof processors, &processors) || pthread_attr_init(&attributes))
        return -1;
    sigfillset(&all);
    pthread_attr_setstacksize(&attributes, 1 << 16);
    pthread_attr_setaffinity_np(&attributes, sizeof processors, &processors);
    pthread_attr_setinheritsched(&attributes, PTHREAD_EXPLICIT_SCHED);
    pthread_attr_setschedpolicy(&attributes, SCHED_OTHER);
    pthread_attr_setschedparam(&attributes, &lowest);
    pthread_sigmask(SIG_BLOCK, &all, &before);          /* signals are for the other threads */
    error = pthread_create(&busy->thread, &attributes, busy_loop, busy);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (error == 0)
        pthread_setschedparam(busy->thread, SCHED_IDLE, &lowest);
    return error;
}

static inline void busy_end(busy_processor *busy) {
    struct sched_param normal = {0};
    atomic_store(&busy->over, 1);
    pthread_setschedparam(busy->thread, SCHED_OTHER, &normal);  /* else it may not run for long */
    pthread_join(busy->thread, NULL);
}
#endif
