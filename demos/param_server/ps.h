/* SPDX-License-Identifier: MIT */
/*
 * What the parts of the program `param_server` share: its flags, what a run came to, the arithmetic of
 * server and trainers, and the words of their messages.
 *
 * The arithmetic (ps_model.c) knows nothing of RPC: a loop that calls it for one trainer after the other
 * gives, bit for bit, the model that a job of processes gives whose updates have a gradient of every
 * trainer. tests/demos/test_param_server.c is that loop.
 */
#ifndef DEMOS_PS_H
#define DEMOS_PS_H

#include "resnet.h"

#include <boxcar.h>
#include <boxcar_cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define PS_SERVER "ps"                      /* rank 0; the trainers are trainer1, trainer2, ... */
#define PS_TRAINERS_MAX (BX_WORLD_MAX - 1)
#define PS_BATCHES_MAX 100000

/* Exit statuses of the program; --help tells them. */
enum {
    PS_OK = 0,
    PS_FAILED = 1,      /* a file, memory, the plot */
    PS_USAGE = 2,
    PS_WORKER = 3,      /* the server or every trainer died, or a worker failed */
};

struct ps_flags {
    int trainers;
    int batch_update_size;
    uint64_t num_batches;       /* of each trainer */
    int batch_size;
    int image;                  /* height and width */
    int num_classes;
    int model;                  /* enum resnet_kind */
    double lr;
    double momentum;
    uint64_t seed;
    int threads;                /* of each trainer's network */
    int device;                 /* flags.h's DEVICE_CPU; DEVICE_CUDA: the server on the first GPU, trainers on all in
                                 * turn; or the GPU of all */
    uint64_t patience_ms;
    const char *json;           /* NULL: none */
    const char *plot;
};

/* ---- What a run came to: written by the server alone, read when it has ended ------------------- */

enum ps_state {
    PS_TRAINING = 0,
    PS_COMPLETED,       /* all its batches */
    PS_DIED,
    PS_GIVEN_UP,        /* alive but silent, and ended by the server */
    PS_BROKEN,          /* its training failed */
};

/* A trainer's time, seconds. Together they are all of it but what the pool needs to start. */
struct ps_seconds {
    double data;        /* drawing images */
    double repack;      /* a version of the model into the form that the network computes with */
    double forward;
    double backward;
    double call;        /* handing over the gradients, the update, the model back */
    double wait;        /* inside the call, for the other trainers */
};

struct ps_trainer_result {
    enum ps_state state;
    uint64_t batches;           /* gradients that came to the server */
    uint64_t late;              /* of them, made from an older version than the newest */
    struct ps_seconds seconds;
    double total_s;             /* from its first call to its end, or to the last that was heard of it */
    uint64_t handed_bytes;      /* tensors given to and taken from the server */
    uint64_t copied_bytes;      /* of them, copied on the way */
};

struct ps_update {
    double loss;                /* mean of its rows' losses */
    double seconds;             /* since the update before it, or the start */
    double step_s;              /* of them, the server's arithmetic */
    double beyond_compute_s;    /* the longest of its trainers' calls; < 0: nobody lived to tell */
    uint32_t rows;
    uint32_t late;
};

struct ps_result {
    bool ended;                 /* the server came to the end of the training */
    double total_s;             /* from starting the trainers to the end of the last */
    uint64_t checksum;          /* of the final parameters */
    uint64_t late_gradients;
    uint64_t late_versions_max; /* how old the oldest of them was */
    uint64_t absences;          /* times that the others went on without a trainer */
    uint64_t versions_live_max;
    uint64_t leases_at_end;
    uint64_t copied_bytes;      /* by the server */
    uint64_t arena_bytes;       /* most that the server's tensors took */
    size_t updates;
    struct ps_trainer_result trainers[PS_TRAINERS_MAX];    /* trainer<i + 1> */
    struct ps_update update[];  /* room for trainers x num_batches */
};

/* ---- ps_place.c: where the arithmetic is done ------------------------------------------------------ */

struct ps_place {
    struct bx_cuda *cuda;       /* NULL: the CPU */
    int ordinal;
    struct bx_job *job;         /* once it is joined */
    struct bx_device device;
};

/* The flags' device for that worker. 0 or a code of bx_cuda_*. */
int ps_place_open(struct ps_place *place, const struct ps_flags *flags, int rank);
/* From here on its memory can be lent; the job has started. 0 or a code of bx_gpu_open. */
int ps_place_join(struct ps_place *place, struct bx_job *job);
void ps_place_close(struct ps_place *place);            /* after the job has shut down */
/* Bytes of tensors that this worker has copied on their way. UINT64_MAX where that cannot be known. */
uint64_t ps_place_copied(const struct ps_place *place);
/* floats there, zeros; to be freed. -ENOMEM. And between here and there. */
int ps_place_alloc(const struct ps_place *place, size_t count, float **floats);
void ps_place_free(const struct ps_place *place, float *floats);
int ps_place_copy(const struct ps_place *place, float *to, const float *from, size_t count);

/* An array for every parameter, in tensors that can be lent. On the CPU a tensor each. On a GPU they are parts of one
 * tensor, at the offsets of ps_params, so that one mark on a stream, one wait and one launch do for all. */
struct ps_set {
    struct bx_tensor **tensors;
    size_t tensor_count;
    float **at;
};
struct ps_params;
int ps_set_create(struct ps_set *set, const struct ps_place *place, const struct ps_params *params);
void ps_set_destroy(struct ps_set *set);                /* right for one that is all zero, too */
bool ps_set_is_on_loan(const struct ps_set *set);
/* What was put on the place's stream so far writes it: whoever borrows it waits for that. */
int ps_set_written(const struct ps_set *set, const struct ps_place *place);
/* What is put on it from now on reads it: its memory is not used again before that is done, whoever destroys it. */
int ps_set_read(const struct ps_set *set, const struct ps_place *place);
int ps_put_set(struct bx_msg *msg, const struct ps_set *set);
/* Finds the arrays of a set that was sent, and puts the place's stream behind their writing. A sentence that names
 * `what`, and -EPROTO, where they are not such a set. */
int ps_read_set(struct bx_reader *reader, const struct ps_place *place, const struct ps_params *params,
                const char *what, const float **at);

/* ---- ps_model.c: the arithmetic ------------------------------------------------------------------ */

/* The parameters of a model in one list. `offset` places each in an array of `room` floats such that all
 * begin at the start of a cache line if the array does. */
struct ps_param {
    int ndim;
    int64_t shape[4];
    size_t elements;
    size_t offset;
};

struct ps_params {
    struct ps_param *at;
    size_t count;
    size_t elements;
    size_t room;
};

/* 0 or a code of bx_net_*. Ask it of a net that has been built; it keeps nothing of it. */
int ps_params_init(struct ps_params *params, const struct bx_net *net);
void ps_params_fini(struct ps_params *params);
uint64_t ps_params_bytes(const struct ps_params *params);

/* Zeros for every parameter, 64-byte aligned, touched, on the CPU; to be freed. NULL when memory is out. */
float *ps_params_alloc(const struct ps_params *params);

/* FNV-1a over the parameters' bytes in their order. */
uint64_t ps_checksum(const struct ps_params *params, const float *const *at);

/* The server's half: writes version n+1 from version n and the gradients of `rows` trainers, in their
 * order, averaged. grads[row][i] is the gradient of parameter i. */
struct ps_step {
    const struct ps_place *place;
    const struct ps_params *params;
    float lr;
    float momentum;
    float *velocity;                        /* params->room floats of the place, zeros at first */
    const float *const *from;
    float *const *to;
    const float *const *const *grads;
    size_t rows;                            /* 1 to PS_TRAINERS_MAX */
};
int ps_step(const struct ps_step *step);       /* 0, or what a GPU failed with */

/* The trainer's half: its network, and the batch that it works on. */
struct ps_learner {
    struct ps_place place;      /* of the four arrays that the net reads and writes */
    struct bx_net *net;
    uint64_t images_key;
    size_t pixels;
    size_t outputs;
    float *drawn;               /* on a GPU: pinned, where images are drawn; else `images` */
    float *images;
    float *logits;
    float *target;
    float *logits_grad;
};

/* rank is the trainer's, 1 and up; it says on which device. 0, -ENOMEM or a code of bx_net_* and bx_cuda_*. */
int ps_learner_init(struct ps_learner *learner, const struct ps_flags *flags, int rank);
void ps_learner_fini(struct ps_learner *learner);

/* The images of batch number `batch`; what they show is the same in each. */
void ps_learner_draw(struct ps_learner *learner, uint64_t batch);

/* With the parameters that bx_net_set_params gave the net. grads[i] is written. */
int ps_learner_forward(struct ps_learner *learner, double *loss);
int ps_learner_backward(struct ps_learner *learner, float *const *grads);

/* A network of the flags' model, with `images` at a time; cuda NULL: on the CPU. */
int ps_net_create(const struct ps_flags *flags, struct bx_cuda *cuda, int images, int side, struct bx_net **net);

/* ---- The workers ------------------------------------------------------------------------------------ */

struct ps_run {
    const struct ps_flags *flags;
    struct ps_result *result;
};

/* ps_server.c and ps_trainer.c: a worker's whole life; give its exit status. */
int ps_server(const struct bx_options *options, const struct ps_run *run);
int ps_trainer(const struct bx_options *options, const struct ps_run *run);

/* Functions of the server, and how their arguments and replies are written:
 *
 *   get_model                 -> u64 version, tensors
 *   update_and_fetch_model    u64 version, u64 time of sending (ns), f64 loss, report, tensors
 *                             -> u64 version, u64 time waited for others (ns), tensors
 *
 * and of a trainer:
 *
 *   train                     -> report
 *
 * The report is what a trainer knows of itself so far, and so is told again with each gradient: of one
 * that dies, what it last said remains. */
struct ps_report {
    int64_t pid;
    double total_s;
    struct ps_seconds seconds;
    uint64_t handed_bytes;
    uint64_t copied_bytes;
    uint64_t last_version;      /* that a call of its returned; 0: none has */
    double last_call_s;         /* of that call, without the wait */
};

/* ---- ps_run.c: messages, time, and one job from its fork to its end ---------------------------------- */

int ps_put_report(struct bx_msg *msg, const struct ps_report *report);
int ps_read_report(struct bx_reader *reader, struct ps_report *report);

/* CLOCK_MONOTONIC, which is one clock for all processes. */
uint64_t ps_now_ns(void);
double ps_seconds_since(uint64_t start_ns);

/* A place for the result, shared with the workers; NULL after a sentence on stderr. */
struct ps_result *ps_result_create(const struct ps_flags *flags);
void ps_result_destroy(struct ps_result *result, const struct ps_flags *flags);

/* Runs the job and gives the program's exit status; sentences on stderr. */
int ps_run(const struct ps_run *run);

/* ---- ps_report.c: what is told of a run ------------------------------------------------------------- */

const char *ps_model_name(int model);           /* "resnet50" */
const char *ps_state_name(enum ps_state state);
int ps_count(const struct ps_run *run, enum ps_state state);    /* trainers that ended so */

void ps_print(const struct ps_run *run);
void ps_write_json(const struct ps_run *run, FILE *file);
int ps_plot(const struct ps_run *run);          /* 0, or -1 after a sentence on stderr */

#endif
