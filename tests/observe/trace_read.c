/* SPDX-License-Identifier: MIT */
/*
 * trace_read.h. Runs in the test's process, after the workers have ended.
 */
#include "trace_read.h"

#include "tests/harness/harness.h"

char trace_path[64];

void trace_into_file(void)
{
    snprintf(trace_path, sizeof trace_path, "/tmp/boxcar-trace-%ld.json", (long)getpid());
    unlink(trace_path);
    setenv("BX_TRACE", trace_path, 1);
    unsetenv("BX_TRACE_EVENTS");
}

void trace_remove_file(void)
{
    unlink(trace_path);
}

static bool is(const struct json *event, const struct wanted *wanted)
{
    const char *name = json_text(json_get(event, "name"));

    if (wanted->phase != 0 && json_text(json_get(event, "ph"))[0] != wanted->phase)
        return false;
    if (wanted->category != NULL && strcmp(json_text(json_get(event, "cat")), wanted->category) != 0)
        return false;
    if (wanted->pid >= 0 && (int)json_number(json_get(event, "pid")) != wanted->pid)
        return false;
    if (wanted->name == NULL)
        return true;
    if (wanted->name[strlen(wanted->name) - 1] == ' ')
        return strncmp(name, wanted->name, strlen(wanted->name)) == 0;
    return strcmp(name, wanted->name) == 0;
}

const struct json *next_of(const struct json *root, const struct json *event, struct wanted wanted)
{
    event = event == NULL ? root->first : event->next;
    while (event != NULL && !is(event, &wanted))
        event = event->next;
    return event;
}

int count_of(const struct json *root, struct wanted wanted)
{
    const struct json *event = NULL;
    int count = 0;

    while ((event = next_of(root, event, wanted)) != NULL)
        count++;
    return count;
}

double of(const struct json *event, const char *key)
{
    return json_number(json_get(event, key));
}

const struct json *arg(const struct json *event, const char *key)
{
    return json_get(json_get(event, "args"), key);
}

double end_of(const struct json *slice)
{
    return of(slice, "ts") + of(slice, "dur");
}

bool same_thread(const struct json *a, const struct json *b)
{
    return of(a, "pid") == of(b, "pid") && of(a, "tid") == of(b, "tid");
}

const struct json *slice_around(const struct json *root, const struct json *event)
{
    const struct json *slice = NULL, *best = NULL;

    while ((slice = next_of(root, slice, (struct wanted){ 'X', NULL, NULL, ANY })) != NULL)
        if (same_thread(slice, event) && of(slice, "ts") <= of(event, "ts") && of(event, "ts") <= end_of(slice) &&
            (best == NULL || of(slice, "ts") > of(best, "ts") ||
             (of(slice, "ts") == of(best, "ts") && of(slice, "dur") < of(best, "dur"))))
            best = slice;
    return best;
}

void slices_nest(const struct json *root)
{
    struct wanted slices = { 'X', NULL, NULL, ANY };
    const struct json *a = NULL, *b;

    while ((a = next_of(root, a, slices)) != NULL) {
        cr_assert_geq(of(a, "dur"), 0);
        for (b = NULL; (b = next_of(root, b, slices)) != NULL;)
            cr_assert(!same_thread(a, b) || of(b, "ts") <= of(a, "ts") || of(b, "ts") >= end_of(a) - HALF_NS ||
                          end_of(b) <= end_of(a) + HALF_NS,
                      "'%s' and '%s' overlap", json_text(json_get(a, "name")), json_text(json_get(b, "name")));
    }
}

static const struct json *other_end(const struct json *root, const struct json *start, int *count)
{
    const struct json *end = NULL, *found = NULL;

    *count = 0;
    while ((end = next_of(root, end, (struct wanted){ 'f', "arrow", json_text(json_get(start, "name")), ANY })) != NULL)
        if (strcmp(json_text(json_get(end, "id")), json_text(json_get(start, "id"))) == 0) {
            found = end;
            ++*count;
        }
    return found;
}

/* Each arrow has two ends, both in slices of its kind and of the same call, and leads forward in time. */
static void arrows_join(const struct json *root)
{
    const struct json *start = NULL;
    int count;

    cr_assert_eq(COUNT(root, 's', NULL, NULL, ANY), COUNT(root, 'f', NULL, NULL, ANY));
    while ((start = next_of(root, start, (struct wanted){ 's', "arrow", NULL, ANY })) != NULL) {
        bool reply = strcmp(json_text(json_get(start, "name")), "reply") == 0;
        const struct json *end = other_end(root, start, &count);

        cr_assert_eq(count, 1, "an arrow has %d ends", count);
        cr_assert_str_eq(json_text(json_get(end, "bp")), "e");
        cr_assert_lt(of(start, "ts"), of(end, "ts"));

        const struct json *from = slice_around(root, start), *to = slice_around(root, end);

        cr_assert(from != NULL && to != NULL);
        cr_assert_eq(of(from, "ts"), of(start, "ts"));
        cr_assert_eq(of(to, "ts"), of(end, "ts"));
        cr_assert(is(from, &(struct wanted){ 'X', reply ? "handler" : "call", reply ? "answer " : NULL, ANY }));
        cr_assert(reply ? is(to, &(struct wanted){ 'X', "call", NULL, ANY })
                        : is(to, &(struct wanted){ 'X', "handler", NULL, ANY }) ||
                              is(to, &(struct wanted){ 'X', "batch", NULL, ANY }));
        if (arg(to, "call") != NULL)
            cr_assert_str_eq(json_text(arg(from, "call")), json_text(arg(to, "call")));
    }
}

void workers_are_named(const struct json *root, int size)
{
    struct wanted names = { 'M', NULL, "process_name", 0 };

    for (names.pid = 0; names.pid < size; names.pid++) {
        const struct json *event = next_of(root, NULL, names);
        char wanted[64];

        cr_assert_not_null(event, "worker %d has no name", names.pid);
        snprintf(wanted, sizeof wanted, "worker%d (rank %d, pid ", names.pid, names.pid);
        cr_assert_eq(strncmp(json_text(arg(event, "name")), wanted, strlen(wanted)), 0);
        cr_assert_eq(json_number(arg(next_of(root, NULL, (struct wanted){ 'M', NULL, "process_sort_index", names.pid }),
                                     "sort_index")), names.pid);
    }
    cr_assert_eq(COUNT(root, 'M', NULL, "process_name", ANY), size);
}

struct json *trace_read(const char *path, int size)
{
    struct json *root = json_load(path);

    cr_assert_not_null(root, "%s is not JSON", path);
    cr_assert_eq(root->type, JSON_ARRAY);
    cr_assert_str_eq(json_text(json_get(root->first, "name")), "boxcar");
    cr_assert_str_eq(json_text(arg(root->first, "job")), harness_job_name());
    cr_assert_eq(json_number(arg(root->first, "world_size")), size);
    workers_are_named(root, size);
    slices_nest(root);
    arrows_join(root);
    return root;
}

void calls_run_forward(const struct json *root, const char *function)
{
    const struct json *call = NULL;
    char names[2][64];

    snprintf(names[0], sizeof names[0], "answer %s", function);
    snprintf(names[1], sizeof names[1], "reply %s", function);
    while ((call = next_of(root, call, (struct wanted){ 'X', "call", function, ANY })) != NULL) {
        const struct json *steps[3] = { NULL };

        for (int i = 0; i < 3; i++) {
            struct wanted wanted = { 'X', i < 2 ? "handler" : "call", i == 0 ? function : names[i - 1], ANY };

            do
                steps[i] = next_of(root, steps[i], wanted);
            while (steps[i] != NULL && strcmp(json_text(arg(steps[i], "call")), json_text(arg(call, "call"))) != 0);
            cr_assert_not_null(steps[i], "call %s has no '%s'", json_text(arg(call, "call")), wanted.name);
        }
        cr_assert_leq(of(call, "ts"), of(steps[0], "ts"));
        cr_assert_leq(end_of(steps[0]), of(steps[1], "ts") + HALF_NS);
        cr_assert_leq(of(steps[1], "ts"), of(steps[2], "ts"));
        cr_assert_leq(of(steps[2], "ts"), end_of(call) + HALF_NS);
    }
}

const char *thread_of(const struct json *root, const struct json *event)
{
    const struct json *name = NULL;

    while ((name = next_of(root, name, (struct wanted){ 'M', NULL, "thread_name", ANY })) != NULL)
        if (same_thread(name, event))
            return json_text(arg(name, "name"));
    return "";
}

/* Of a span: its id among all workers, or among those of its worker. */
static const char *id_of(const struct json *span)
{
    const struct json *own = json_get(json_get(span, "id2"), "local");

    return json_text(own != NULL ? own : json_get(span, "id"));
}

void spans_end(const struct json *root)
{
    const struct json *begin = NULL, *end;

    cr_assert_eq(COUNT(root, 'b', NULL, NULL, ANY), COUNT(root, 'e', NULL, NULL, ANY));
    while ((begin = next_of(root, begin, (struct wanted){ 'b', NULL, NULL, ANY })) != NULL) {
        int count = 0;

        for (end = NULL; (end = next_of(root, end, (struct wanted){ 'e', json_text(json_get(begin, "cat")),
                                                                    json_text(json_get(begin, "name")),
                                                                    (int)of(begin, "pid") })) != NULL;)
            if (strcmp(id_of(begin), id_of(end)) == 0) {
                cr_assert_lt(of(begin, "ts"), of(end, "ts"));
                count++;
            }
        cr_assert_eq(count, 1);
    }
}
