# SPDX-License-Identifier: MIT
#
# The calls of test_null.c and test_forked.c, as C, for each function that the headers declare: one with NULL for each
# pointer that the function needs, or, with -v forked=1, one if it takes a job.
#
# All other arguments are good: objects of a started job, which the tests name a_job, a_tensor, so that no other check
# comes first; else 1, or a page of zeroes. Calls of functions with a format are in the tests.

BEGIN {
    count = split("job msg reader future rref tensor var tape grads dist context net spawn_options type", names)
    for (i = 1; i <= count; i++)
        good["struct bx_" names[i] " *"] = "a_" names[i]
    good["struct bx_var *const *"] = "&a_var"
    good["struct bx_future *const *"] = "&a_future"
    good["int64_t *"] = "(const int64_t[]){ 1, 1 }"
    good["char *"] = "\"worker1\""
    good["struct bx_device "] = "(struct bx_device){ BX_CUDA, 0 }"

    # Parameters that may be NULL, everywhere or in a function; and those of a net that is finished.
    count = split("void *context;void *object;void *stream;bx_free_fn free_fn;bx_free_fn free_context;" \
        "bx_cancel_fn fn;bx_death_fn fn;bx_join_fn fn;bx_log_fn log;const struct bx_options *options;" \
        "const struct bx_call_options *options;const struct bx_batch_options *options;" \
        "const struct bx_net_options *options;const struct bx_tape_options *options;" \
        "const struct bx_optim_adam *options;const struct bx_optim_sgd *sgd;const struct bx_optim_adam *adam;" \
        "const struct bx_msg *args;const struct bx_msg *const *args;struct bx_msg **reply;struct bx_msg **value;" \
        "struct bx_msg *value;struct bx_spawn_report *report;struct bx_tensor *const *root_grads;float *grad;" \
        "struct bx_var *bias;float **mean;float **var;size_t *channels;const int64_t *strides;" \
        "bx_future_create job;bx_future_all job;bx_future_any job;bx_tensor_create job;bx_tensor_copy job;" \
        "bx_grads_create job;bx_optim_step job;bx_future_fail text;bx_batch_fail_row text;bx_grads_at var;" \
        "bx_net_op_create params;bx_net_share_params owner;bx_net_set_params params;bx_net_forward input;" \
        "bx_net_forward output;bx_net_predict input;bx_net_predict output;bx_net_backward output_grad;" \
        "bx_net_backward grads;bx_gpu_open device;bx_tensor_create_on shape", names, ";")
    for (i = 1; i <= count; i++)
        if (!forked || names[i] !~ / job$/)
            optional[names[i]]

    judges["bx_msg_error"] = "IS_ZERO"
    judges["bx_future_error_text"] = judges["bx_read_str"] = "IS_EMPTY"
    judges["bx_future_index"] = judges["bx_tensor_device"] = judges["bx_var_item"] = judges["bx_mse_loss"] = "SKIP"
}

function is_optional(function_name, type, name)
{
    return (type name) in optional || (function_name " " name) in optional
}

function judge_of(result, function_name)
{
    return function_name in judges ? judges[function_name] : result == "int " ? "REFUSED" : \
        result == "void " ? "NOTHING" : result ~ /\*$/ ? "IS_NULL" : result ~ /^struct/ ? "SKIP" : "IS_ZERO"
}

function is_pointer(type)
{
    return type ~ /\*$|_fn $/
}

# The call with NULL at `null`, and where it may be.
function call_of(function_name, types, names, count, null,    i, type, text)
{
    for (i = 1; i <= count; i++) {
        type = types[i]
        sub(/^const /, "", type)
        text = text (i > 1 ? ", " : "") \
            (i == null || is_optional(function_name, types[i], names[i]) ? "NULL" : type in good ? good[type] : \
             type ~ /\*$/ ? "(" types[i] ")page" : is_pointer(type) ? "(" type ")abort" : "1")
    }
    return function_name "(" text ")"
}

function declared(text,    open, name, result, count, params, types, names, i, judge)
{
    gsub(/[ \t]+/, " ", text)
    open = index(text, "(")
    match(text, /bx_[a-z0-9_]+\(/)
    name = substr(text, RSTART, open - RSTART)
    result = substr(text, 1, RSTART - 1)
    count = split(substr(text, open + 1, index(text, ")") - open - 1), params, / ?, ?/)
    judge = judge_of(result, name)
    if (text ~ /\.\.\./ || judge == "SKIP")
        return
    for (i = 1; i <= count; i++) {
        match(params[i], /[a-z0-9_]+$/)
        names[i] = substr(params[i], RSTART)
        types[i] = substr(params[i], 1, RSTART - 1)
    }
    for (i = 1; i <= count; i++) {
        if (forked ? types[i] !~ /bx_job \*$/ || judge == "NOTHING" : \
            !is_pointer(types[i]) || is_optional(name, types[i], names[i]))
            continue
        # The tape of an operation that is stopped has the error.
        print (types[1] == "struct bx_tape *" && i > 1 && judge == "IS_NULL" ? "STOPPED" : judge) \
            "(" call_of(name, types, names, count, forked ? 0 : i) ");"
    }
}

# A declaration begins in the first column with a type; no parameter has parentheses.
/^[a-z].*[ *]bx_[a-z0-9_]+\(/ && !/^typedef/ { text = ""; inside = 1 }
inside {
    text = text " " $0
    if (/\)/) {
        sub(/^ /, "", text)
        declared(text)
        inside = 0
    }
}
