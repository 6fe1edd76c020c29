/* SPDX-License-Identifier: MIT */
/*
 * Requests at the callee: functions, what is being served, answers, batches. A part of rpc.h, which includes it.
 */
#ifndef BXI_REQUEST_H
#define BXI_REQUEST_H

/* ---- register.c ---------------------------------------------------------------------------------- */

enum bxi_function_kind { BXI_F_INLINE = 1, BXI_F_BLOCKING = 2, BXI_F_ASYNC = 3, BXI_F_BATCH = 4 };
struct bxi_handler {            /* never changes once handler_count counts it */
    char name[BXI_NAME_BYTES];
    enum bxi_function_kind kind;
    bool locked;                    /* of a blocking one: BX_LOCKED */
    const struct bx_type *type;     /* of a method; else NULL */
    bx_handler_fn fn;
    void *context;
    bx_async_fn async;              /* of an async one; or, of a blocking one, in place of fn */
    struct bxi_batcher *batcher;
};

int bxi_register(struct bx_job *job, const char *name, const struct bxi_handler *handler);     /* as bx_register */
/* Those registered so far; how many. Lock. */
uint32_t bxi_functions_copy(struct bx_job *job, struct bxi_function rows[BXI_FUNCTION_MAX]);
int bxi_check_type(const struct bx_type *type, const char *name);      /* 0, -EINVAL */

/* ---- object.c: calls on objects ------------------------------------------------------------------- */

/* The object of a request that is called on one. 0: run the handler. 1: the request was answered, or kept until the
 * object is made. BX_E_CORRUPT: its caller must be cut off. Role. */
int bxi_object_check(struct bx_request *request, size_t body_bytes);
void bxi_object_value(struct bx_request *request);         /* answers bx_rref_to_here. Role */
/* A request that makes an object ends. Returns the code for its maker, *text likewise. */
int bxi_object_made(struct bx_request *request, int code, const char **text, const struct bx_msg *value);
void bxi_objects_unpark(const struct bxi_role *role, struct bx_job *job);      /* role: runs what waited for objects */
void bxi_object_take(struct bx_job *job, struct bxi_waiting *waiting);     /* out of the list that it waits in; lock */
extern const struct bxi_rref_ops bxi_rref_ops;

/* ---- waiting.c: requests ------------------------------------------------------------------------- */

/* What is being answered. Lies on the stack for an inline handler, in a struct bxi_waiting for any other. */
struct bx_request {
    struct bx_job *job;
    struct bxi_peer *peer;
    const struct bxi_handler *handler;
    uint64_t id;
    uint64_t deadline_ns;
    uint64_t consumed;              /* as the request's frame said */
    struct bxi_loan *loan;          /* of its arguments; one reference, dropped when it is answered; or NULL */
    struct bxi_rref_in *in;         /* references that it brought, likewise; or NULL */
    uint64_t begin_ns;              /* of its handler, if it is timed */
    uint64_t traced_id;             /* if it is traced: id, or of a one-way call where its frame ended in the ring */
    uint64_t traced_ns;             /* if it is traced: when its handler began, or its future was first waited for */
    bool oneway;
    bool counted;                   /* in a struct bxi_waiting that bxi_waiting_begin has put into the table */
    bool timed;
    bool unparked;                  /* it has waited for its object */
    bool has_arrow;                 /* if it is traced: its arrow has not come to its end */
    uint16_t row;                   /* shown in the segment; BXI_NO_ROW: there was none free */
    uint32_t kind_count;            /* records of the kinds of its arguments, which lie behind their bytes */
};
#define BXI_NO_ROW UINT16_MAX

enum bxi_waiting_state {
    BXI_WAITS_FOR_THREAD = 1,       /* the pool has its task: queued, or run by a thread */
    BXI_WAITS_FOR_BATCH,            /* in the list of its batcher */
    BXI_WAITS_FOR_FUTURE,           /* the future's callback will answer it */
    BXI_WAITS_FOR_OBJECT,           /* in the list of a reference whose object is to come, or in rpc->unparked */
    BXI_WAITS_NO_MORE,              /* its batch runs, or a cancel has failed its future */
};
struct bxi_hook {                   /* of a blocking handler (nested.c); lock */
    bx_cancel_fn fn;                /* NULL: none */
    void *context;
    const char *runs;               /* bxi_this_thread() of the thread that runs it now, or NULL */
    struct bxi_timer timer;         /* at the request's deadline, while fn is not NULL */
    bool used;                      /* the handler's thread: fn was ever set */
};
#define BXI_ANSWERED 1
struct bxi_waiting {
    struct bx_request request;      /* first */
    struct bx_msg *args;            /* NULL once an async handler has read them */
    struct bxi_waiting *chain_next; /* lock: in its peer's table */
    struct bxi_waiting **chain_link;/* lock: the pointer there that points to it */
    enum bxi_waiting_state state;   /* lock */
    struct bxi_task task;           /* of a handler on the pool */
    struct bx_future *future;       /* of an async handler: the maker's reference, or the callback's, keeps it */
    struct bxi_waiting *next_row;   /* lock: in its batcher's list, or in that of the calls on an object to come */
    uint64_t came_ns, makes_id;     /* of a row; of a request that makes an object, else 0 */
    struct bx_msg *reply;           /* of a blocking handler or a row; as the next two, for the thread that runs it */
    int code;                       /* of a row: bx_batch_fail_row */
    char *text;
    /* Of a blocking or async handler: what it began for the request (nested.c). */
    bxi_a32 refs;                   /* to this memory: the request's, and one of each callback added in its handler */
    bxi_a32 gave_up;                /* 0; BXI_ANSWERED; or why its caller gave up, a code < 0 */
    bxi_a32 room_waits;             /* threads that wait for room for a call of its */
    uint32_t call_count, call_capacity;     /* lock, both */
    struct bxi_nested_call *calls;  /* lock: its calls, also some that have ended */
    struct bxi_hook hook;
};

struct bxi_waiting *bxi_waiting_create(const struct bx_request *request);      /* NULL: no memory */
/* Counts the request as being served, and puts it into its peer's table. Lock. 0; BX_E_CORRUPT: its caller has more
 * in flight than it may; -ENOBUFS: 1024 one-way calls of its caller wait already, this one is to be dropped. */
int bxi_waiting_begin(struct bxi_waiting *waiting, enum bxi_waiting_state state);
void bxi_waiting_end(struct bxi_waiting *waiting);          /* undoes begin; lock */
/* A thread of the pool has run its async handler: from WAITS_FOR_THREAD to WAITS_FOR_FUTURE. Lock. 0; or why its future
 * is to fail at once: a cancel, or the end of its caller, came while the handler ran. */
int bxi_waiting_for_future(struct bxi_waiting *waiting);
struct bxi_waiting *bxi_waiting_find(struct bxi_peer *peer, uint64_t id);      /* NULL; lock */
/* Releases what it holds, and a reference to its memory. It is in no table, or the table is not used any more. */
void bxi_waiting_destroy(struct bxi_waiting *waiting);

/* The handler of a request begins. */
static inline void bxi_request_begins(struct bx_request *request)
{
    if (request->timed)
        request->begin_ns = bxi_now_ns();
}

/* ---- answer.c ------------------------------------------------------------------------------------ */

/* Answers a request: code 0 with a value, or an error with a text. Takes the lock. */
void bxi_answer(struct bx_request *request, int code, const char *text, const struct bx_msg *value);
/* The same for one that waits, by its owner: destroys the arguments first, and then the object. */
void bxi_waiting_answer(struct bxi_waiting *waiting, int code, const char *text, const struct bx_msg *value);
/* Answers with a value of an inline handler that is nothing but bytes. False: it is more than that, and nothing was
 * done. Role. */
bool bxi_answer_plain(const struct bx_request *request, const struct bx_msg *value);

/* ---- batch.c ------------------------------------------------------------------------------------- */

struct bxi_batcher {            /* lock, but for what says otherwise */
    const struct bxi_handler *handler;          /* start */
    bx_batch_fn fn;                             /* start; its context is the handler's */
    size_t max_rows;                            /* start */
    uint64_t flush_after_ns;                    /* start */
    bool blocking;                              /* start */
    bool running;
    bool due;                                   /* the oldest row has waited long enough */
    uint64_t members[BXI_WORKERS_MAX / 64];
    uint64_t present[BXI_WORKERS_MAX / 64];     /* workers with a row in the list */
    struct bxi_waiting *head, *tail;            /* the rows */
    uint32_t waiting;                           /* how many */
    struct bxi_timer timer;
    struct bxi_task task;                       /* of a blocking body; the pool's while `running` */
    struct bxi_batcher *next;
};

/* Begins the request as a row of its function's batch. 0, and the batch owns it; or as bxi_waiting_begin. Role. */
int bxi_batch_add(struct bxi_waiting *row);
void bxi_batch_take(struct bx_job *job, struct bxi_waiting *row);      /* out of its batcher's list; lock */
int bxi_batch_member(struct bx_job *job, struct bxi_batcher *batcher, int rank, bool joins);   /* 0, BX_E_PEER_DEAD */
void bxi_batches_leave(struct bx_job *job, int rank);      /* the worker is gone, and a member of nothing */
void bxi_batches_look(struct bx_job *job);      /* role: runs what is ready */
void bxi_batch_show(struct bx_job *job, const struct bxi_batcher *batcher);    /* to inspectors; lock, or start */
void bxi_batchers_destroy(struct bx_job *job);

/* ---- cancel.c ------------------------------------------------------------------------------------ */

/* The caller gave up; code: BX_E_CANCELLED or BX_E_TIMEOUT. A queued request is answered with it. The future of an
 * async handler fails with BX_E_CANCELLED. Role. */
void bxi_waiting_cancel(struct bx_job *job, struct bxi_peer *peer, uint64_t id, int code);
/* The caller is gone: the futures of its async requests fail with code. */
void bxi_waiting_peer_gone(struct bx_job *job, struct bxi_peer *peer, int code);
/* Fails the future that an async handler returned. peer: its caller. */
void bxi_waiting_fail_future(struct bx_future *future, const struct bxi_peer *peer, int code);

/* ---- handler.c (role) ---------------------------------------------------------------------------- */

/* Runs the request's handler, or keeps the request until it can run. The body is in job->rpc->frame, or the request has
 * a loan. 0, or BX_E_CORRUPT: the caller must be cut off. */
int bxi_handler_run(struct bx_request *request, size_t body_bytes);

/* ---- dispatch.c (role) --------------------------------------------------------------------------- */

/* Handles one frame of peer, which still lies in its ring. 0; -EAGAIN: not yet, its device memory is being mapped;
 * or BX_E_CORRUPT: it must be cut off. */
int bxi_dispatch(const struct bxi_role *role, struct bx_job *job, struct bxi_peer *peer, const void *payload,
                 uint32_t payload_bytes);

/* A request; its body, which is in job->rpc->frame, has been copied out of the ring. 0, BX_E_CORRUPT. */
int bxi_handle_request(struct bx_job *job, struct bxi_peer *peer, const struct bxi_frame *head, size_t body_bytes);
/* True if the ring to the peer is open: a callee opens it before it accepts the first call. Else its frame, of so many
 * requests, has been refused. */
bool bxi_way_back(struct bx_job *job, struct bxi_peer *peer, uint64_t requests);

/* Frames have been copied out of the ring, which has advanced. */
void bxi_frames_note(struct bx_job *job, struct bxi_peer *peer, uint64_t frames, uint64_t payload_bytes);
/* The frame has been copied out of the ring. Without the lock. */
void bxi_frame_taken(const struct bxi_role *role, struct bx_job *job, struct bxi_peer *peer, uint32_t payload_bytes);

#endif
