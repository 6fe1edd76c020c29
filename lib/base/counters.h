/* SPDX-License-Identifier: MIT */
/*
 * The counters of a worker, in one list from which the layout, the names and bx_counter are made.
 *
 * The domain names the one writer: "role", the thread with the progress role; "lock", a thread that holds run->lock;
 * "any", any thread, by atomic addition. Any process may read them at any time. They only grow, except gpu_bytes and
 * gpu_bytes_used.
 */
#ifndef BXI_COUNTERS_H
#define BXI_COUNTERS_H

/*    name                  domain  meaning */
#define BXI_COUNTERS(X)                                                                             \
    X(calls_sent,           "lock", "requests handed to a ring or to the queue before it")         \
    X(calls_completed,      "lock", "calls that ended with a reply or an error from the callee")   \
    X(calls_timed_out,      "lock", "calls whose deadline passed first")                           \
    X(calls_cancelled,      "lock", "calls cancelled by their caller")                             \
    X(calls_peer_dead,      "lock", "calls that failed because the callee died")                   \
    X(oneways_sent,         "lock", "one-way calls sent")                                          \
    X(late_replies,         "lock", "replies that came after their call had ended, dropped")       \
    X(requests_inline,      "role", "requests given to inline handlers")                           \
    X(requests_async,       "role", "requests given to async handlers")                            \
    X(requests_blocking,    "role", "requests given to the pool")                                  \
    X(requests_batched,     "role", "requests given to a batch")                                   \
    X(requests_refused,     "role", "requests answered with an error before any handler")          \
    X(requests_expired,     "lock", "requests whose deadline passed before their handler ran")     \
    X(requests_dropped,     "role", "requests of dead or refused peers, dropped unread")           \
    X(replies_sent,         "lock", "replies and errors handed to a ring or its queue")            \
    X(batches_run,          "lock", "batch bodies run")                                            \
    X(batch_rows,           "lock", "rows given to batch bodies")                                  \
    X(doorbells_rung,       "lock", "eventfd writes to wake a peer")                               \
    X(doorbells_saved,      "lock", "looks at a peer's doorbell that found it awake or rung for")  \
    X(bells_unneeded,       "lock", "looks saved because the peer had read the frame already")     \
    X(wakeups,              "any",  "times a thread came back from sleep, for whatever reason")    \
    X(waits_uring,          "any",  "sleeps of the background thread in io_uring")                 \
    X(waits_epoll,          "any",  "sleeps of the background thread in epoll, or in poll(2)")     \
    X(spins_hit,            "role", "spins that found work before their budget was spent")         \
    X(spins_missed,         "role", "spins that ended in sleep")                                   \
    X(rescued,              "role", "waits that were over while their thread slept on: always 0")  \
    X(peers_dead,           "role", "peers that died")                                             \
    X(peers_corrupt,        "role", "peers cut off because their memory held nonsense")            \
    X(pool_threads,         "any",  "threads of the pool ever started")                            \
    X(queued_frames,        "lock", "frames that waited in private memory for room in a ring")     \
    X(tensors_sent,         "lock", "tensors in messages sent")                                    \
    X(tensor_bytes_sent,    "lock", "bytes of those tensors, none of them copied for it")          \
    X(tensors_copied,       "any",  "of them, copied into the arena first: born elsewhere")        \
    X(tensor_bytes_copied,  "any",  "bytes of those")                                              \
    X(tensors_passed_on,    "any",  "of them, on loan from a third worker and sent on without a copy")         \
    X(passed_on_bytes,      "any",  "bytes of those")                                              \
    X(leases_granted,       "lock", "messages that lent something")                                \
    X(leases_returned,      "lock", "leases given back")                                           \
    X(leases_taken_back,    "lock", "leases taken back from workers that died")                    \
    X(rrefs_made,           "lock", "references to objects made, here and by bx_remote elsewhere")         \
    X(rrefs_entered,        "lock", "references that a third worker passed on, entered at their owner")    \
    X(rrefs_destroyed,      "lock", "references to objects of this worker that nobody holds any more")     \
    X(rrefs_leaked,         "lock", "of its objects, those that were still referred to at the end")        \
    X(net_bytes,            "role", "bytes sent to workers on other hosts")                        \
    X(net_bytes_received,   "role", "bytes that came from there")                                  \
    X(gpu_slabs_opened,     "any",  "slabs of other workers' device memory mapped")                \
    X(gpu_slabs_closed,     "any",  "of them, unmapped")                                           \
    X(gpu_marks,            "any",  "points set on streams, for others to wait for")               \
    X(gpu_waits,            "any",  "waits put on streams")                                        \
    X(gpu_waits_saved,      "any",  "waits that were not needed: it had passed")                   \
    X(gpu_host_synchronises, "any", "times that a thread waited for a GPU")                        \
    X(gpu_fallbacks,        "any",  "times that an order was not the first choice")                \
    X(gpu_staged_bytes,     "any",  "bytes copied through pinned host memory")                     \
    X(gpu_copied_bytes,     "any",  "bytes copied on or between GPUs")                             \
    X(gpu_bytes,            "any",  "device memory held; may go down")                             \
    X(gpu_bytes_used,       "any",  "of it, in tensors; may go down")                              \
    X(gpu_open_ns,          "any",  "time in the driver's calls that map slabs")                   \
    X(gpu_close_ns,         "any",  "and in those that unmap them")                                \
    X(timers_late,          "any",  "deadlines found late, by a sleeper that was not told of them: always 0")

enum bxi_counter {
#define BXI_COUNTER_ENUM(name, domain, text) BXI_C_##name,
    BXI_COUNTERS(BXI_COUNTER_ENUM)
#undef BXI_COUNTER_ENUM
    BXI_COUNTER_COUNT
};

#endif
