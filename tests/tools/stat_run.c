/* SPDX-License-Identifier: MIT */
/*
 * stat_run.h: runs in a test's process or in one of its workers. popen does not run the library's
 * fork handlers, so a worker may call it.
 */
#include "stat_run.h"

#define TEXT_MAX (16u << 20)

static void give_up(const char *what)
{
    fprintf(stderr, "shmstat cannot be run: %s\n", what);
    abort();
}

/* What all runs of this process printed: tests use it until they end. */
static struct kept {
    struct kept *next;
    struct stat_run run;
} *all_runs;

static void keep(struct stat_run run)
{
    struct kept *kept = malloc(sizeof(*kept));

    if (kept == NULL)
        give_up("no memory");
    *kept = (struct kept){ all_runs, run };
    all_runs = kept;
}

struct stat_run stat_run(const char *format, ...)
{
    struct stat_run run = { 0 };
    const char *build = getenv("BX_BUILD_DIR");
    char args[512], command[1024];
    va_list list;

    va_start(list, format);
    vsnprintf(args, sizeof(args), format, list);
    va_end(list);
    /* A sanitizer's exit status must differ from shmstat's own. */
    snprintf(command, sizeof(command),
             "ASAN_OPTIONS=\"$ASAN_OPTIONS:exitcode=99\" UBSAN_OPTIONS=\"$UBSAN_OPTIONS:exitcode=99\" "
             "exec '%s/bin/shmstat' %s %s", build != NULL ? build : "build", args,
             strstr(args, "--json") != NULL ? "" : "2>&1");
    FILE *stream = popen(command, "re");
    run.text = malloc(TEXT_MAX);
    if (stream == NULL || run.text == NULL)
        give_up(command);
    size_t bytes = fread(run.text, 1, TEXT_MAX - 1, stream);
    run.text[bytes] = '\0';
    run.text = realloc(run.text, bytes + 1);
    int status = pclose(stream);
    if (status < 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 127))
        give_up(command);
    run.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    run.json = json_parse(run.text);
    keep(run);
    return run;
}

struct stat_run stat_run_json(const char *command, const char *job)
{
    struct stat_run run = stat_run("%s %s --json", command, job);

    cr_assert_not_null(run.json, "%s", run.text);
    return run;
}

struct stat_run stat_run_fine(const char *command, const char *job)
{
    struct stat_run run = stat_run_json(command, job);

    cr_assert_eq(run.status, 0, "%s", run.text);
    return run;
}

void stat_run_fits(const struct stat_run *run)
{
    for (const char *line = run->text; *line != '\0'; line = strchr(line, '\n') + 1)
        cr_expect_leq(strcspn(line, "\n"), 80, "%s", run->text);
}

/* path: what was compared last, from the value on. */
static bool is_like(const struct json *value, const struct json *wanted, char path[256])
{
    size_t end = strlen(path), index = 0;

    if (value == NULL || value->type != wanted->type || value->number != wanted->number ||
        strcmp(json_text(value), json_text(wanted)) != 0 ||
        (wanted->type == JSON_ARRAY && value->count != wanted->count))
        return false;
    for (const struct json *child = wanted->first; child != NULL; child = child->next, index++) {
        if (child->key != NULL)
            snprintf(path + end, 256 - end, ".%s", child->key);
        else
            snprintf(path + end, 256 - end, "[%zu]", index);
        if (!is_like(child->key != NULL ? json_get(value, child->key) : json_at(value, index), child, path))
            return false;
    }
    path[end] = '\0';
    return true;
}

const char *stat_run_differs(const struct json *value, const char *wanted, ...)
{
    static char path[256], text[2048];
    struct json *parsed;
    va_list list;
    bool is;

    va_start(list, wanted);
    vsnprintf(text, sizeof(text), wanted, list);
    va_end(list);
    for (char *quote = text; (quote = strchr(quote, '\'')) != NULL;)
        *quote = '"';
    strcpy(path, "the value");
    parsed = json_parse(text);
    is = parsed != NULL && is_like(value, parsed, path);
    json_free(parsed);
    return is ? NULL : strncat(path, " is another", sizeof(path) - strlen(path) - 1);
}

const struct json *stat_run_job(const struct stat_run *run)
{
    return json_at(json_get(run->json, "jobs"), 0);
}

const struct json *stat_run_row(const struct json *worker, const char *list, const char *key, double value)
{
    const struct json *rows = json_get(worker, list);

    for (const struct json *row = rows != NULL ? rows->first : NULL; row != NULL; row = row->next)
        if (json_number(json_get(row, key)) == value)
            return row;
    return NULL;
}

const struct json *stat_run_worker(const struct stat_run *run, int rank)
{
    return stat_run_row(stat_run_job(run), "workers", "rank", rank);
}

double stat_run_counter(const struct json *worker, const char *name)
{
    return json_number(json_get(json_get(worker, "counters"), name));
}
