/* SPDX-License-Identifier: MIT */
/*
 * demos/rnn: the parts in one process, and the whole model over two. The suite `reference` compares the model over two
 * processes with numbers in double precision (test_reference.c says where the files are): losses to 1e-5, gradients and
 * parameters to 1e-4 of the tensor's norm plus 2e-8.
 */
#include "demos/rnn/rnn.h"
#include "tests/autograd/gradient.h"
#include "tests/harness/harness.h"
#include "tests/harness/json.h"

#include <math.h>

enum { LIMIT_S = 60, STEPS = 10 };

TestSuite(rnn, .timeout = LIMIT_S);

static const struct rnn_flags TUTORIAL = { .batch = 5, .ntoken = 10, .ninp = 2, .nhid = 3, .nindices = 3, .nlayers = 4,
                                           .dropout = 0.5, .epochs = 10, .lr = 0.05 };

static const float *floats(struct bx_var *var)
{
    return bx_tensor_data(bx_var_value(var));
}

static int64_t count_of(struct bx_var *var)
{
    return bx_tensor_elements(bx_var_value(var));
}

/* ---- First values ------------------------------------------------------------------------------------------ */

/* Expects numbers that are uniform from -limit to limit. */
static void expect_uniform(struct bx_var *param, double limit)
{
    const int64_t count = count_of(param);
    double most = 0, sum = 0;

    for (int64_t i = 0; i < count; i++) {
        most = fmax(most, fabs((double)floats(param)[i]));
        sum += (double)floats(param)[i];
    }
    cr_expect_leq(most, limit * (1 + 1e-6));
    cr_expect_geq(most, 0.9 * limit);
    cr_expect_leq(fabs(sum / (double)count), 5 * limit / sqrt(3.0 * (double)count));
}

static void expect_normal(const struct bx_tensor *tensor)
{
    const float *at = bx_tensor_data(tensor);
    const double count = (double)bx_tensor_elements(tensor);
    double sum = 0, squares = 0;

    for (int64_t i = 0; i < bx_tensor_elements(tensor); i++) {
        sum += (double)at[i];
        squares += (double)(at[i] * at[i]);
    }
    cr_expect_leq(fabs(sum / count), 5 / sqrt(count));
    cr_expect_leq(fabs(squares / count - 1), 5 * sqrt(2 / count));
}

Test(rnn, begins_with_the_tutorials_values)
{
    struct rnn_flags flags = TUTORIAL;
    struct rnn_part *decoder = NULL;
    struct rnn_part *table = NULL;
    struct rnn_lstm *lstm = NULL;

    flags.ntoken = 50;
    flags.ninp = flags.nhid = 16;
    flags.nindices = 20;
    cr_assert_eq(rnn_table_create(NULL, &flags, &table), 0);
    cr_assert_eq(rnn_lstm_create(NULL, &flags, &lstm), 0);
    cr_assert_eq(rnn_decoder_create(NULL, &flags, &decoder), 0);
    cr_expect(table->draws != lstm->draws && lstm->draws != decoder->draws && table->draws != decoder->draws);
    expect_uniform(table->weight, 0.1);
    expect_uniform(decoder->weight, 0.1);
    cr_expect_neq(floats(table->weight)[0], floats(decoder->weight)[0]);
    for (int64_t i = 0; i < count_of(decoder->bias); i++)
        cr_expect_eq(floats(decoder->bias)[i], 0.0f);
    cr_assert_eq(lstm->param_count, 16);
    for (size_t i = 0; i < lstm->param_count; i++)
        expect_uniform(lstm->params[i], 0.25);
    expect_normal(lstm->h);
    expect_normal(lstm->c);
    cr_expect_neq(((const float *)bx_tensor_data(lstm->h))[0], ((const float *)bx_tensor_data(lstm->c))[0]);
    rnn_part_destroy(table);
    rnn_lstm_destroy(lstm);
    rnn_part_destroy(decoder);
}

/* ---- Batches ------------------------------------------------------------------------------------------------- */

static void expect_below(const struct bx_tensor *tensor, int most)
{
    const int64_t *at = bx_tensor_data(tensor);

    for (int64_t i = 0; i < bx_tensor_elements(tensor); i++)
        cr_expect(at[i] >= 0 && at[i] < most, "element %lld is %lld", (long long)i, (long long)at[i]);
}

Test(rnn, draws_batches_of_the_tutorials_shapes)
{
    struct rnn_batch first, again, second;

    cr_assert_eq(rnn_batch_init(&first, NULL, &TUTORIAL, 0), 0);
    cr_assert_eq(rnn_batch_init(&again, NULL, &TUTORIAL, 0), 0);
    cr_assert_eq(rnn_batch_init(&second, NULL, &TUTORIAL, 1), 0);
    expect_below(first.indices, 10);
    expect_below(first.targets, 3);
    cr_expect_arr_eq(bx_tensor_shape(first.indices), ((const int64_t[]){ 5, 3 }), 16);
    cr_expect_arr_eq(bx_tensor_shape(first.targets), ((const int64_t[]){ 5, 10 }), 16);
    cr_expect_arr_eq(bx_tensor_data(first.indices), bx_tensor_data(again.indices), 120);
    cr_expect_neq(memcmp(bx_tensor_data(first.indices), bx_tensor_data(second.indices), 120), 0);
    cr_expect_neq(memcmp(bx_tensor_data(first.targets), bx_tensor_data(second.targets), 400), 0);
    rnn_batch_fini(&first);
    rnn_batch_fini(&again);
    rnn_batch_fini(&second);
}

Test(rnn, the_token_after_i_is_the_next_number)
{
    struct rnn_flags flags = TUTORIAL;
    struct rnn_batch batch;
    const int64_t *from, *to;

    flags.loss = RNN_LOSS_TOKEN;
    cr_assert_eq(rnn_batch_init(&batch, NULL, &flags, 4), 0);
    from = bx_tensor_data(batch.indices);
    to = bx_tensor_data(batch.targets);
    cr_assert_eq(bx_tensor_elements(batch.targets), 15);
    for (int i = 0; i < 15; i++)
        cr_expect_eq(to[i], (from[i] + 1) % 10);
    rnn_batch_fini(&batch);
}

/* ---- Dropout ------------------------------------------------------------------------------------------------- */

/* What the table gives for `rows` times token 0. */
static struct bx_var *embed(struct bx_tape *tape, const struct rnn_part *table, int64_t rows, uint64_t iteration)
{
    const int64_t token[] = { 0 };
    struct bx_tensor *one = indices(&(struct shape){ 1, { 1 } }, token), *tokens = NULL;
    struct bx_var *result;

    cr_assert_eq(bx_tensor_as_strided(one, 0, 2, (const int64_t[]){ rows, 1 }, (const int64_t[]){ 0, 0 }, &tokens), 0);
    result = rnn_table_forward(table, tape, tokens, iteration);
    bx_tensor_release(one);
    bx_tensor_release(tokens);
    cr_assert_not_null(result, "%s", bx_error_text());
    return result;
}

Test(rnn, drops_what_the_table_gives_and_scales_the_rest)
{
    enum { ROWS = 2000 };
    OWN(tape) *tape = new_tape();
    struct rnn_flags flags = TUTORIAL;
    struct rnn_part *table = NULL;
    struct bx_var *result, *again, *next;
    double dropped = 0;

    flags.dropout = 0.3;
    cr_assert_eq(rnn_table_create(NULL, &flags, &table), 0);
    result = embed(tape, table, ROWS, 7);
    again = embed(tape, table, ROWS, 7);
    next = embed(tape, table, ROWS, 8);
    for (int i = 0; i < 2 * ROWS; i++) {
        const float is = floats(result)[i], kept = floats(table->weight)[i % 2] * (float)(1 / 0.7);

        dropped += (double)(is == 0.0f);
        cr_assert(is == 0.0f || fabsf(is - kept) <= 1e-6f, "element %d: %g", i, (double)is);
    }
    dropped /= 2 * ROWS;
    cr_expect_leq(fabs(dropped - 0.3), 5 * sqrt(0.3 * 0.7 / (2 * ROWS)));
    cr_expect_arr_eq(floats(result), floats(again), 2 * ROWS * sizeof(float));
    cr_expect_neq(memcmp(floats(result), floats(next), 2 * ROWS * sizeof(float)), 0);
    rnn_part_destroy(table);
}

static struct bx_var *ones(struct bx_tape *tape, int64_t batch, int64_t width)
{
    const double values[] = { 1 };
    OWN(tensor) *one = values_of(BX_F32, &(struct shape){ 1, { 1 } }, values), *all = NULL;
    struct bx_var *result;

    cr_assert_eq(bx_tensor_as_strided(one, 0, 3, (const int64_t[]){ batch, 1, width }, (const int64_t[]){ 0, 0, 0 },
                                      &all), 0);
    result = bx_tape_input(tape, all);
    return result;
}

Test(rnn, drops_what_the_decoder_is_given)
{
    enum { ROWS = 1000 };
    OWN(tape) *tape = new_tape();
    struct rnn_flags flags = TUTORIAL;
    struct rnn_part *decoder = NULL;
    struct bx_var *result;
    double dropped = 0;

    flags.nhid = 1;
    flags.ntoken = 2;
    cr_assert_eq(rnn_decoder_create(NULL, &flags, &decoder), 0);
    result = rnn_decoder_forward(decoder, tape, ones(tape, ROWS, 1), 3);
    cr_assert_not_null(result, "%s", bx_error_text());
    for (int row = 0; row < ROWS; row++) {      /* its one input is dropped, or doubled, for both tokens together */
        const float *is = floats(result) + 2 * (ptrdiff_t)row, *w = floats(decoder->weight);

        dropped += (double)(is[0] == 0.0f);
        cr_assert((is[0] == 0.0f && is[1] == 0.0f) || (is[0] == 2 * w[0] && is[1] == 2 * w[1]), "row %d", row);
    }
    cr_expect_leq(fabs(dropped / ROWS - 0.5), 5 * 0.5 / sqrt(ROWS));
    rnn_part_destroy(decoder);
}

/* True if the LSTM's output depends on the number of the iteration. */
static bool drops(int layers, double dropout)
{
    struct rnn_flags flags = TUTORIAL;
    OWN(tape) *tape = new_tape();
    struct bx_var *output[2];
    bool same;

    flags.nlayers = layers;
    flags.dropout = dropout;
    flags.nindices = 1;
    for (uint64_t i = 0; i < 2; i++) {
        struct rnn_lstm *lstm = NULL;

        cr_assert_eq(rnn_lstm_create(NULL, &flags, &lstm), 0);
        output[i] = rnn_lstm_forward(lstm, tape, ones(tape, 5, 2), i);
        cr_assert_not_null(output[i], "%s", bx_error_text());
        rnn_lstm_destroy(lstm);
    }
    for (int64_t i = 0; i < count_of(output[0]); i++)
        cr_expect_neq(floats(output[0])[i], 0.0f, "the last layer's output is not dropped");
    same = memcmp(floats(output[0]), floats(output[1]), (size_t)count_of(output[0]) * sizeof(float)) == 0;
    return !same;
}

Test(rnn, drops_between_the_layers_of_the_lstm_and_nowhere_else_in_it)
{
    cr_expect(drops(2, 0.5));
    cr_expect(!drops(2, 0.0));
    cr_expect(!drops(1, 0.5));
}

/* ---- Over two processes ---------------------------------------------------------------------------------------- */

static const char *const NAMES[] = { RNN_PS, RNN_TRAINER };
static struct bx_dist *dist;
static enum rnn_loss loss_kind;
static struct rnn_flags compared;

/* A parameter of this worker: its reference is the first in the args. */
static struct bx_var *read_param(struct bx_reader *args)
{
    void *param = NULL;

    HARNESS_EQ(bx_rref_local(bx_read_rref(args), bx_param_type(), &param), 0);
    return param;
}

HARNESS_HANDLER(set_param)
{
    struct bx_var *param = read_param(args);
    OWN(tensor) *own = NULL;
    int rc = bx_tensor_copy(NULL, bx_read_tensor(args), &own);

    if (rc == 0)
        rc = bx_var_set_value(param, own);
    return rc;
}

static int get_grad(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *unused)
{
    OWN(context) *context = NULL;
    int rc = bx_read_context(dist, args, &context);

    (void)request, (void)unused;
    if (rc == 0)
        rc = bx_msg_put_tensor(reply, bx_grads_get(bx_context_grads(context), read_param(args)));
    return rc;
}

static int set_up(struct bx_job *job)
{
    int rc = bx_dist_create(job, &dist);

    HARNESS_REGISTER(job, HARNESS_INLINE("set_param", set_param), HARNESS_INLINE("get_grad", get_grad));
    if (bx_job_rank(job) == 0)
        HARNESS_EQ(rnn_serve(job, dist), 0);
    return rc;
}

/* Runs the body as the trainer, beside a `ps`. */
static void run_trainer(harness_fn body)
{
    harness_run(&(struct harness_world){ .size = 2, .setup = set_up, .body = { NULL, body }, .names = NAMES });
}

struct trained {
    struct rnn_model model;
    struct rnn_params params;
    struct bx_dist_optim *optim;
};

static void begin(struct trained *trained, struct bx_job *job, const struct rnn_flags *flags)
{
    const struct bx_optim_sgd sgd = { .lr = flags->lr };

    HARNESS_EQ(rnn_model_init(&trained->model, job, dist, flags), 0);
    HARNESS_EQ(rnn_model_params(&trained->model, &trained->params), 0);
    HARNESS_EQ(bx_dist_optim_create(dist, trained->params.at, trained->params.count, &sgd, NULL, &trained->optim), 0);
}

static void end(struct trained *trained)
{
    rnn_params_release(&trained->params);
    bx_dist_optim_destroy(trained->optim);
    rnn_model_fini(&trained->model);
}

/* The reply of a function of the parameter's worker; context may be NULL, value too. */
static struct bx_msg *ask_owner(struct trained *trained, size_t k, const char *function, struct bx_context *context,
                                struct bx_tensor *value)
{
    struct bx_job *job = trained->model.job;
    struct bx_msg *args = bx_msg_create(0), *reply = NULL;

    if (context != NULL)
        HARNESS_EQ(bx_msg_put_context(args, context), 0);
    HARNESS_EQ(bx_msg_put_rref(args, trained->params.at[k]), 0);
    if (value != NULL)
        HARNESS_EQ(bx_msg_put_tensor(args, value), 0);
    const char *owner = bx_worker_name(job, bx_rref_owner(trained->params.at[k]));
    HARNESS_EQ(bx_rpc_sync(job, owner, function, args, NULL, &reply), 0);
    bx_msg_destroy(args);
    return reply;
}

/* The parameter's value, in a message. */
static struct bx_msg *value_of(struct trained *trained, size_t k)
{
    struct bx_msg *value = NULL;

    HARNESS_EQ(bx_rref_to_here(trained->params.at[k], NULL, &value), 0);
    return value;
}

static struct bx_tensor *tensor_of(const struct bx_msg *msg)
{
    struct bx_reader reader = bx_msg_reader(msg);

    return bx_read_tensor(&reader);
}

/* ---- The reference -------------------------------------------------------------------------------------------- */

static uint64_t salt;

/* A tensor of that shape with the reference's fill(k). */
static struct bx_tensor *filled(int ndim, const int64_t *shape, uint64_t k, double scale)
{
    struct bx_tensor *tensor = NULL;

    HARNESS_EQ(bx_tensor_create(NULL, BX_F32, ndim, shape, &tensor), 0);
    for (int64_t i = 0; i < bx_tensor_elements(tensor); i++)
        ((float *)bx_tensor_data_mut(tensor))[i] = (float)fill_at(k + salt, (uint64_t)i, scale);
    return tensor;
}

static void fill_params(struct trained *trained)
{
    struct rnn_lstm *lstm = trained->model.lstm;
    const int64_t state[] = { TUTORIAL.nlayers, TUTORIAL.nindices, TUTORIAL.nhid };

    for (size_t k = 0; k < trained->params.count; k++) {
        struct bx_msg *value = value_of(trained, k);
        OWN(tensor) *tensor = filled(bx_tensor_ndim(tensor_of(value)), bx_tensor_shape(tensor_of(value)), k, 1);

        bx_msg_destroy(value);
        bx_msg_destroy(ask_owner(trained, k, "set_param", NULL, tensor));
    }
    bx_tensor_release(lstm->h);
    bx_tensor_release(lstm->c);
    lstm->h = filled(3, state, 100, 0.5);
    lstm->c = filled(3, state, 101, 0.5);
}

static struct bx_tensor *counted(int64_t rows, int64_t columns, int64_t factor, int64_t shift, int64_t modulus)
{
    struct bx_tensor *tensor = NULL;

    HARNESS_EQ(bx_tensor_create(NULL, BX_I64, 2, (const int64_t[]){ rows, columns }, &tensor), 0);
    for (int64_t i = 0; i < rows * columns; i++)
        ((int64_t *)bx_tensor_data_mut(tensor))[i] = (i * factor + shift) % modulus;
    return tensor;
}

static void check_near(double got, const struct json *want, double tolerance, const char *what)
{
    if (!(fabs(got - json_number(want)) <= tolerance))
        harness_failed(__FILE__, __LINE__, "%s: %.9g instead of %.9g", what, got, json_number(want));
}

/* Compares norm, first four elements, last one, and the dot product with fill(1000 + k) if the reference has it. */
static void check_tensor(const struct bx_tensor *tensor, size_t k, const struct json *want, const char *what)
{
    const double norm = json_number(json_get(want, "norm")), tolerance = 1e-4 * norm + 2e-8;
    double squares = 0, dot = 0;
    int64_t count;

    HARNESS_CHECK(tensor != NULL && want != NULL);
    count = bx_tensor_elements(tensor);
    for (int64_t i = 0; i < count; i++) {
        squares += pow(element(tensor, i), 2);
        dot += element(tensor, i) * fill_at(1000 + k + salt, (uint64_t)i, 1);
    }
    check_near(sqrt(squares), json_get(want, "norm"), tolerance, what);
    for (size_t i = 0; i < 4 && (int64_t)i < count; i++)
        check_near(element(tensor, (int64_t)i), json_at(json_get(want, "first"), i), tolerance, what);
    check_near(element(tensor, count - 1), json_get(want, "last"), tolerance, what);
    if (json_get(want, "dot") != NULL)          /* the other factor's length is at most the root of count */
        check_near(dot, json_get(want, "dot"), 1e-4 * norm * sqrt((double)count) + 2e-8, what);
}

/* The gradients of the context, or, if it is NULL, the values. */
static void check_params(struct trained *trained, struct bx_context *context, const struct json *wants)
{
    HARNESS_EQ(wants->count, trained->params.count);
    for (size_t k = 0; k < trained->params.count; k++) {
        OWN(msg) *msg = context != NULL ? ask_owner(trained, k, "get_grad", context, NULL) : value_of(trained, k);
        const struct json *want = json_at(wants, k);
        char what[96];

        snprintf(what, sizeof(what), "%s of %s", context != NULL ? "gradient" : "value",
                 json_text(json_get(want, "name")));
        check_tensor(tensor_of(msg), k, want, what);
    }
}

static void check_first_step(struct trained *trained, const struct rnn_batch *batch, const struct json *want)
{
    struct bx_context *context = NULL;
    struct bx_var *logits = NULL, *loss;

    HARNESS_EQ(bx_context_create(dist, &context), 0);
    HARNESS_EQ(rnn_model_forward(&trained->model, context, batch->indices, 0, &logits), 0);
    check_tensor(bx_var_value(logits), 0, json_get(want, "output"), "output");
    loss = rnn_loss(trained->model.tape, logits, batch->targets, batch->kind);
    check_near(bx_var_item(loss), json_at(json_get(want, "losses"), 0),
               1e-5 * json_number(json_at(json_get(want, "losses"), 0)), "first loss");
    HARNESS_EQ(bx_context_backward(context, &loss, NULL, 1, false, 0), 0);
    check_params(trained, context, json_get(want, "grads"));
    HARNESS_EQ(bx_dist_optim_step(trained->optim, context), 0);
    bx_context_end(context);
    bx_tape_clear(trained->model.tape);
}

static void compare_with_reference(struct bx_job *job)
{
    const bool token = loss_kind == RNN_LOSS_TOKEN;
    struct json *file = json_load_reference("rnn.json");
    const struct json *want = json_get(file, token ? "token" : "tutorial");
    struct rnn_flags flags = TUTORIAL;
    struct rnn_batch batch = { counted(5, 3, 3, 0, 10), token ? counted(5, 3, 3, 1, 10) : counted(5, 10, 5, 0, 3),
                               loss_kind };
    struct trained trained;
    double loss = NAN;

    HARNESS_CHECK(want != NULL);
    if (json_get(file, "salt") != NULL)
        salt = (uint64_t)json_number(json_get(file, "salt"));
    flags.dropout = 0;
    begin(&trained, job, &flags);
    fill_params(&trained);
    check_first_step(&trained, &batch, want);
    HARNESS_EQ(rnn_model_train(&trained.model, trained.optim, &batch, 1, &loss), 0);
    check_near(loss, json_at(json_get(want, "losses"), 1), 1e-5 * loss, "second loss");
    check_params(&trained, NULL, json_get(want, "after_steps"));
    end(&trained);
    rnn_batch_fini(&batch);
    json_free(file);
}

Test(reference, rnn_over_two_processes_with_the_tutorials_loss, .timeout = LIMIT_S)
{
    loss_kind = RNN_LOSS_TUTORIAL;
    run_trainer(compare_with_reference);
}

Test(reference, rnn_over_two_processes_with_a_loss_for_each_token, .timeout = LIMIT_S)
{
    loss_kind = RNN_LOSS_TOKEN;
    run_trainer(compare_with_reference);
}

/* ---- The same in one process ------------------------------------------------------------------------------------- */

/* The parts of one process, and an optimizer of all their parameters. */
struct alone {
    struct rnn_part *table;
    struct rnn_lstm *lstm;
    struct rnn_part *decoder;
    struct bx_optim *optim;
    struct bx_grads *grads;
    struct bx_tape *tape;
};

static void begin_alone(struct alone *alone, const struct rnn_flags *flags)
{
    struct bx_var *params[32] = { NULL };
    size_t count = 0;

    HARNESS_EQ(rnn_table_create(NULL, flags, &alone->table), 0);
    HARNESS_EQ(rnn_lstm_create(NULL, flags, &alone->lstm), 0);
    HARNESS_EQ(rnn_decoder_create(NULL, flags, &alone->decoder), 0);
    params[count++] = alone->table->weight;
    for (size_t i = 0; i < alone->lstm->param_count; i++)
        params[count++] = alone->lstm->params[i];
    params[count++] = alone->decoder->weight;
    params[count++] = alone->decoder->bias;
    HARNESS_EQ(bx_optim_sgd_create(&(struct bx_optim_sgd){ .lr = flags->lr }, params, count, &alone->optim), 0);
    HARNESS_EQ(bx_grads_create(NULL, &alone->grads), 0);
    HARNESS_EQ(bx_tape_create(NULL, &alone->tape), 0);
}

static double train_alone(struct alone *alone, const struct rnn_batch *batch, uint64_t iteration)
{
    struct bx_var *embedded = rnn_table_forward(alone->table, alone->tape, batch->indices, iteration);
    struct bx_var *output = rnn_lstm_forward(alone->lstm, alone->tape, embedded, iteration);
    struct bx_var *logits = rnn_decoder_forward(alone->decoder, alone->tape, output, iteration);
    struct bx_var *root = rnn_loss(alone->tape, logits, batch->targets, batch->kind);
    double loss = bx_var_item(root);

    HARNESS_EQ(bx_backward(&root, NULL, 1, false, alone->grads), 0);
    HARNESS_EQ(bx_optim_step(alone->optim, NULL, alone->grads), 0);
    bx_grads_clear(alone->grads);
    bx_tape_clear(alone->tape);
    return loss;
}

static void end_alone(struct alone *alone)
{
    rnn_part_destroy(alone->table);
    rnn_lstm_destroy(alone->lstm);
    rnn_part_destroy(alone->decoder);
    bx_optim_destroy(alone->optim);
    bx_grads_destroy(alone->grads);
    bx_tape_destroy(alone->tape);
}

static void compare_with_one_process(struct bx_job *job)
{
    struct trained trained;
    struct alone alone;

    begin(&trained, job, &compared);
    begin_alone(&alone, &compared);
    for (int i = 0; i < STEPS; i++) {
        struct rnn_batch batch;
        double loss = NAN;

        HARNESS_EQ(rnn_batch_init(&batch, job, &compared, i % RNN_BATCHES), 0);
        HARNESS_EQ(rnn_model_train(&trained.model, trained.optim, &batch, (uint64_t)i, &loss), 0);
        HARNESS_CHECK(loss == train_alone(&alone, &batch, (uint64_t)i));
        rnn_batch_fini(&batch);
    }
    end_alone(&alone);
    end(&trained);
}

Test(rnn, computes_over_two_workers_what_one_process_computes_bit_for_bit)
{
    compared = TUTORIAL;
    compared.lr = 0.7;
    run_trainer(compare_with_one_process);
    compared.loss = RNN_LOSS_TOKEN;
    run_trainer(compare_with_one_process);
}

/* Its backward passes and steps are not small: they run on the pool. */
Test(rnn, computes_a_larger_network_over_two_workers_bit_for_bit)
{
    compared = TUTORIAL;
    compared.ntoken = 400;
    compared.ninp = compared.nhid = 64;
    compared.nlayers = 2;
    compared.lr = 0.7;
    compared.loss = RNN_LOSS_TOKEN;
    run_trainer(compare_with_one_process);
}

static void call_wrongly(struct bx_job *job)
{
    struct rnn_flags flags = TUTORIAL;
    struct bx_context *context = NULL;
    struct bx_msg *args = bx_msg_create(0), *reply = NULL;
    struct bx_tensor *tokens = counted(1, 1, 0, flags.ntoken, 100);
    struct bx_var *logits = NULL;
    struct rnn_model model;

    HARNESS_EQ(rnn_model_init(&model, job, dist, &flags), 0);
    HARNESS_EQ(bx_context_create(dist, &context), 0);
    HARNESS_EQ(bx_msg_put_context(args, context), 0);
    HARNESS_EQ(bx_rref_sync(model.table, "table.forward", args, NULL, &reply), BX_E_SHORT_MESSAGE);
    bx_msg_put_u64(args, 0);
    HARNESS_EQ(bx_rref_sync(model.table, "table.forward", args, NULL, &reply), -EPROTO);
    HARNESS_EQ(bx_rref_sync(model.decoder, "table.forward", args, NULL, &reply), BX_E_TYPE);
    HARNESS_EQ(rnn_model_forward(&model, context, tokens, 0, &logits), -EINVAL);      /* no such token */
    HARNESS_HAS(bx_error_text(), "embedding");
    bx_context_end(context);
    bx_msg_destroy(args);
    bx_tensor_release(tokens);
    rnn_model_fini(&model);
}

Test(rnn, the_server_refuses_calls_that_do_not_fit)
{
    run_trainer(call_wrongly);
}
