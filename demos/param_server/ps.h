/* SPDX-License-Identifier: MIT */
/*
 * The private header of the program `param_server`. Its sections are in the order in which the files build on each
 * other: each file uses only what stands above its own section.
 *
 *     params.c                  the list of the model's parameters
 *     place.c                   memory on the CPU or on a GPU, and the tensors that lend it
 *     model.c                   the arithmetic
 *     messages.c                the report in a trainer's messages
 *     server.c, trainers.c      the server
 *     trainer.c                 a trainer
 *     report.c                  what a run prints and writes
 *     run.c                     one job
 *     param_server.c            the first process: flags
 *
 * The arithmetic (model.c) uses no RPC. A loop that calls it for one trainer after the other computes the same model,
 * bit for bit, as a job of processes in which each update has a gradient of every trainer. That loop is
 * tests/demos/test_param_server.c.
 */
#ifndef DEMOS_PS_H
#define DEMOS_PS_H

#include "demos/common/resnet.h"

#include <boxcar.h>
#include <boxcar_cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PS_SERVER "ps"                      /* rank 0; the trainers are trainer1, trainer2, ... */
#define PS_TRAINERS_MAX (BX_WORLD_MAX - 1)
#define PS_BATCHES_MAX 100000

struct ps_flags {
    int trainers;
    int batch_update_size;
    uint64_t num_batches;       /* of each trainer */
    int batch_size;             /* images */
    int image;                  /* height and width, pixels */
    int num_classes;
    int model;                  /* enum resnet_kind */
    double lr;
    double momentum;
    uint64_t seed;
    int threads;                /* of each trainer's network */
    int device;                 /* DEVICE_CPU; DEVICE_CUDA: the server on the first GPU, trainers on all in turn; or the
                                 * ordinal of one GPU for all (demos/common/flags.h) */
    uint64_t patience_ms;
    int restart;                /* most restarts of each trainer */
    uint64_t kill;              /* trainers that the server kills, one after the other */
    const char *json;           /* NULL: none */
    const char *plot;
};

/* ---- params.c: the list of parameters --------------------------------------------------------------- */

/* The parameters of a model. `offset`, in floats, places each in one array of `room` floats. If that array begins at
 * the start of a cache line, so does each parameter. */
struct ps_param {
    int ndim;
    int64_t shape[4];
    size_t elements;
    size_t offset;
};

struct ps_params {
    struct ps_param *at;
    size_t count;
    size_t elements;            /* of all */
    size_t room;                /* elements, and the gaps between parameters */
};

/* Lists the parameters of a finished net and keeps no pointer into it. 0 or -ENOMEM. */
int ps_params_init(struct ps_params *params, const struct bx_net *net);
void ps_params_fini(struct ps_params *params);
uint64_t ps_params_bytes(const struct ps_params *params);       /* without the gaps */

/* `room` zeros in CPU memory, 64-byte aligned, every page touched. The caller frees it. NULL: no memory. */
float *ps_params_alloc(const struct ps_params *params);

/* FNV-1a, 64 bits, over the parameters' bytes in their order; at[i] is parameter i in CPU memory. */
uint64_t ps_checksum(const struct ps_params *params, const float *const *at);

/* ---- place.c: where the arithmetic runs ------------------------------------------------------------- */

struct ps_place {
    struct bx_cuda *cuda;       /* NULL: the CPU */
    int ordinal;
    struct bx_job *job;         /* set by ps_place_join */
    struct bx_device device;
};

/* Opens the device that the flags give the worker of this rank. 0 or a code of bx_cuda_*. */
int ps_place_open(struct ps_place *place, const struct ps_flags *flags, int rank);
/* Call once the job has started: makes the place's memory lendable. 0 or a code of bx_gpu_open. */
int ps_place_join(struct ps_place *place, struct bx_job *job);
void ps_place_close(struct ps_place *place);            /* after the job has shut down */
/* Allocates `count` zeros in the place; ps_place_free frees them. 0, -ENOMEM or a code of bx_cuda_*. */
int ps_place_alloc(const struct ps_place *place, size_t count, float **floats);
void ps_place_free(const struct ps_place *place, float *floats);
/* Copies `count` floats between CPU memory and the place, and waits for the copy. 0 or a code of bx_cuda_*. */
int ps_place_copy(const struct ps_place *place, float *to, const float *from, size_t count);

/* One array for each parameter, in tensors that can be lent. On the CPU each array is a tensor. On a GPU all arrays are
 * parts of one tensor, at the offsets of ps_params: one mark on a stream, one wait and one launch serve them all. */
struct ps_set {
    struct bx_tensor **tensors;
    size_t tensor_count;
    float **at;                 /* at[i]: parameter i */
};
int ps_set_create(struct ps_set *set, const struct ps_place *place, const struct ps_params *params);
void ps_set_destroy(struct ps_set *set);                /* accepts an all-zero set */
bool ps_set_is_on_loan(const struct ps_set *set);
/* Records that the work put on the place's stream so far writes the set: borrowers wait for it. */
int ps_set_written(const struct ps_set *set, const struct ps_place *place);
/* Records that the work put on the place's stream from now on reads the set: its memory is not reused before that work
 * is done, even if the set is destroyed. */
int ps_set_read(const struct ps_set *set, const struct ps_place *place);
int ps_put_set(struct bx_msg *msg, const struct ps_set *set);
/* Reads a set from a message into at[0 .. params->count - 1], and makes the place's stream wait until the set is
 * written. -EPROTO, with a sentence that names `what`: the message holds no such set. */
int ps_read_set(struct bx_reader *reader, const struct ps_place *place, const struct ps_params *params,
                const char *what, const float **at);

/* ---- model.c: the arithmetic ------------------------------------------------------------------------ */

/* The server's half: writes version n+1 from version n and the gradients of `rows` trainers, averaged in the order of
 * the rows. grads[row][i] is the gradient of parameter i. */
struct ps_step {
    const struct ps_place *place;
    const struct ps_params *params;
    float lr;
    float momentum;
    float *velocity;                        /* params->room floats in the place, zeros before the first step */
    const float *const *from;
    float *const *to;
    const float *const *const *grads;
    size_t rows;                            /* 1 to PS_TRAINERS_MAX */
};
int ps_step(const struct ps_step *step);       /* 0 or a code of bx_cuda_sgd_step */

/* The trainer's half: its network and its current batch. */
struct ps_learner {
    struct ps_place place;      /* holds images, logits, target and logits_grad */
    struct bx_net *net;
    uint64_t images_key;
    size_t pixels;              /* floats of a batch of images */
    size_t outputs;             /* floats of a batch of logits */
    float *drawn;               /* where images are drawn: pinned memory for a GPU, else `images` itself */
    float *images;              /* N x 3 x H x W */
    float *logits;              /* N x classes, as are the next two */
    float *target;
    float *logits_grad;
};

/* `rank` is the trainer's, 1 and up; it selects the device. 0, -ENOMEM or a code of bx_net_* or bx_cuda_*. */
int ps_learner_init(struct ps_learner *learner, const struct ps_flags *flags, int rank);
void ps_learner_fini(struct ps_learner *learner);

/* Draws the images of batch number `batch`. The labels are the same in each batch. */
void ps_learner_draw(struct ps_learner *learner, uint64_t batch);

/* Forward uses the parameters last given to bx_net_set_params. Backward writes grads[i]. */
int ps_learner_forward(struct ps_learner *learner, double *loss);
int ps_learner_backward(struct ps_learner *learner, float *const *grads);

/* A network of the flags' model for `images` images of `side` x `side` at a time; cuda NULL: on the CPU. */
int ps_net_create(const struct ps_flags *flags, struct bx_cuda *cuda, int images, int side, struct bx_net **net);

/* ---- The result of a run: the server alone writes it; the launcher reads it once the server has ended -- */

enum ps_state {
    PS_TRAINING = 0,
    PS_COMPLETED,       /* did all its batches */
    PS_DIED,
    PS_GIVEN_UP,        /* alive but silent, and killed by the server */
    PS_BROKEN,          /* its training failed */
};

/* What a trainer has spent: seconds, and bytes of tensors. The parts of `total` are disjoint; together they are all of
 * it but the start of the pool's thread. */
struct ps_spent {
    double total;       /* from its first call to its end, or to its last report; a sum over its processes */
    double data;        /* drawing images */
    double repack;      /* repacking a version of the model into the network's own layout */
    double forward;
    double backward;
    double call;        /* sending the gradients, the update, receiving the model */
    double wait;        /* within the call, waiting for the other trainers */
    uint64_t handed_bytes;      /* sent to and received from the server */
    uint64_t copied_bytes;      /* of them, copied in transit */
};

struct ps_trainer_result {
    enum ps_state state;
    uint64_t batches;           /* gradients that the server received, of all its processes */
    uint64_t restarts;          /* processes that took the place of one that had died, and trained */
    uint64_t late;              /* of them, computed from an older version than the newest */
    struct ps_spent spent;
};

/* Numbers alone, because the report prints each as a column. */
struct ps_update {
    double loss;                /* mean of its rows' losses */
    double seconds;             /* since the update before it, or since the start */
    double step_s;              /* of them, the server's arithmetic */
    double beyond_compute_s;    /* the longest call of its trainers, without the wait; NaN: none reported it */
    double rows;
    double late;
};

struct ps_result {
    bool began;                 /* the server has started: one that is started again lacks the model */
    bool ended;                 /* the server reached the end of the training */
    double total_s;             /* from starting the trainers to the end of the last */
    uint64_t checksum;          /* of the final parameters */
    uint64_t late_gradients;
    uint64_t late_versions_max; /* age of the oldest of them, in versions */
    uint64_t absences;          /* how often the others continued without a trainer */
    uint64_t kills;             /* by the server (ps_flags.kill) */
    uint64_t repeats;           /* gradients that were sent again, after the server had used them */
    uint64_t versions_live_max;
    uint64_t leases_at_end;
    uint64_t copied_bytes;      /* by the server */
    uint64_t arena_bytes;       /* high water of the server's tensors */
    size_t updates;
    struct ps_trainer_result trainers[PS_TRAINERS_MAX];    /* [i] is trainer<i + 1> */
    struct ps_update update[];  /* room for trainers x num_batches */
};

/* ---- messages.c: the functions of the workers, and the layout of their messages --------------------- */

/* Methods of the server's object:
 *
 *   get_model                 -> u64 version, tensors
 *   update_and_fetch_model    u64 version, u64 time of sending (ns), f64 loss, report, tensors
 *                             -> u64 version, u64 time waited for others (ns), tensors
 *
 * and the function of a trainer:
 *
 *   train                     reference to the server, u64 number of the first batch -> report
 *
 * A report holds a trainer's figures so far. Each gradient carries one, so that the last report of a trainer that dies
 * remains. The server uses one gradient of each batch: -EALREADY for another. */
struct ps_report {
    int64_t pid;
    uint64_t batch;             /* of the gradient that it comes with; 0 is the first */
    struct ps_spent spent;      /* by this process */
    uint64_t last_version;      /* returned by its last call; 0: none yet */
    double last_call_s;         /* duration of that call, without the wait */
};

int ps_put_report(struct bx_msg *msg, const struct ps_report *report);
int ps_read_report(struct bx_reader *reader, struct ps_report *report);

/* ---- server.c, trainer.c: the workers --------------------------------------------------------------- */

struct ps_run {
    const struct ps_flags *flags;
    struct ps_result *result;
};

/* Each runs a worker from start to end and returns its exit status. */
int ps_server(const struct bx_options *options, const struct ps_run *run);
int ps_trainer(const struct bx_options *options, const struct ps_run *run);

/* ---- report.c: what a run prints and writes --------------------------------------------------------- */

const char *ps_state_name(enum ps_state state);
/* Trainers in that state. */
int ps_count(const struct ps_flags *flags, const struct ps_result *result, enum ps_state state);

struct json;
void ps_print(const struct ps_flags *flags, const struct ps_result *result);
void ps_write_json(const struct ps_flags *flags, const struct ps_result *result, struct json *json);

/* ---- run.c: one job from its fork to its end -------------------------------------------------------- */

/* Of the result, in memory shared with the workers (demos/common/program.h). */
size_t ps_result_bytes(const struct ps_flags *flags);

/* Runs the job and returns the program's exit status; sentences on stderr. */
int ps_run(const struct ps_run *run);

#endif
