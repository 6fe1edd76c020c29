/* SPDX-License-Identifier: MIT */
/*
 * shmstat check: compares the segments of a job with the numbered invariants of layout.h, as far as they can be seen
 * from outside.
 *
 * A job under load changes while it is read, and a change must not be reported as a violation. So of two words that are
 * compared, the one that may be old is read first: a position that only grows is read before the position that is never
 * behind it. A violation in the first copy is read again, in the order in which the owner writes the words, before it
 * is reported. Words that only grow are compared between LOOKS copies.
 *
 * While a worker takes the place of one that died, the others reset what they hold about that rank. What was found
 * about a rank is dropped if it has got a new process meanwhile.
 *
 * What cannot be seen: whether a thread sleeps while `armed` says so (I3); whether requests were dropped (I5); whether
 * memory is still read after its lease was returned (I10). Of I4 and I9 only the present state is checked.
 */
#include "check.h"
#include "describe.h"
#include "device.h"
#include "json.h"
#include "list.h"
#include "objects.h"
#include "ring.h"
#include "shmstat.h"
#include "text.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOOKS 4
#define LISTED_MAX 1000

typedef unsigned long long ull;

bool stat_expect(const struct stat_check *check, bool is_right, const char *invariant, int peer, const char *format,
                 ...)
{
    struct stat_findings *findings = check->findings;
    va_list args;

    if (is_right)
        return true;
    if (findings->list == NULL)
        findings->list = calloc(LISTED_MAX, sizeof(*findings->list));
    if (findings->list == NULL || findings->count == LISTED_MAX) {
        findings->dropped++;
        return false;
    }
    struct stat_violation *violation = &findings->list[findings->count++];
    *violation = (struct stat_violation){ .invariant = invariant, .rank = check->worker->rank, .peer = peer };
    va_start(args, format);
    vsnprintf(violation->text, sizeof(violation->text), format, args);
    va_end(args);
    return false;
}

/* One word, read again now; 0 if it cannot be read. */
static uint64_t fresh(const struct stat_worker *worker, size_t offset)
{
    uint64_t word = 0;

    return stat_read_word(worker, offset, &word) ? word : 0;
}

static int world_of(const struct stat_worker *worker)
{
    return (int)worker->control->header.world_size;     /* checked by stat_job_read */
}

/* ---- One copy ----------------------------------------------------------------------------------- */

static void check_header(const struct stat_check *check)
{
    const struct stat_worker *worker = check->worker;
    const struct bxi_header *header = &worker->control->header;
    ull used = stat_word(&header->arena_used), committed = stat_word(&header->arena_committed);
    ull ending = stat_word(&header->ending);
    uint32_t device_open = stat_word32(&header->device_open);

    stat_expect(check, world_of(worker) == stat_job_size(check->job), "I1", -1,
                "its header says %u workers, where another of the job says %d", header->world_size,
                stat_job_size(check->job));
    stat_expect(check, worker->state >= BXI_STARTING && worker->state <= BXI_GAVE_UP, "I2", -1,
                "state is %u, which is none", worker->state);
    stat_expect(check, (uint32_t)ending <= ending >> 32, "I2", -1, "it moved before round %u, and is at round %llu",
                (uint32_t)ending, ending >> 32);
    stat_expect(check, device_open <= 1, "I14", -1, "device_open is %u, which is neither 0 nor 1", device_open);
    /* 0: it is not known yet. */
    stat_expect(check, header->arena_bytes == 0 || used <= header->arena_bytes, "I11", -1,
                "arena_used is %llu in an arena of %llu bytes", used, (ull)header->arena_bytes);
    stat_expect(check, header->arena_bytes == 0 || committed <= header->arena_bytes, "I11", -1,
                "arena_committed is %llu in an arena of %llu bytes", committed, (ull)header->arena_bytes);
}

static void check_functions(const struct stat_check *check)
{
    uint32_t count = stat_word32(&check->worker->control->header.function_count);

    if (!stat_expect(check, count <= BXI_FUNCTION_MAX, "I9", -1, "function_count is %u, and the table has %d rows",
                     count, BXI_FUNCTION_MAX))
        return;
    for (uint32_t i = 0; i < count; i++) {
        struct bxi_function row;

        /* Read after the count: the copy's row may be older than its count. */
        if (stat_pread(&check->worker->segment, &row, sizeof(row),
                       offsetof(struct bxi_control, function) + i * sizeof(row)) < 0)
            return;
        if (stat_expect(check, row.name[0] != '\0' && memchr(row.name, 0, BXI_NAME_BYTES) != NULL, "I9", -1,
                        "function %u of %u has no name", i, count))
            stat_expect(check, row.kind >= 1 && row.kind <= 4, "I9", -1,
                        "function %u of %u has kind %u, which is none", i, count, row.kind);
    }
}

static void check_open(const struct stat_check *check, int to)
{
    const struct stat_worker *worker = check->worker;
    uint64_t open = stat_word(&worker->control->pair[to].open);
    uint64_t sent = stat_word(&bxi_tables(worker->control)->pair_counters[to].frames_sent);

    if (stat_expect(check, open <= 1, "I4", to, "open is %llu, which is neither 0 nor 1", (ull)open) &&
        stat_expect(check, open == 0 || to < world_of(worker), "I4", to,
                    "open is %llu for a rank that the job does not have", (ull)open))
        /* The ring is opened before the first frame is counted. */
        stat_expect(check, open == 1 || sent == 0 || fresh(worker, STAT_AT(control, pair, to, open)) != 0, "I4", to,
                    "%llu frames were sent through a ring that is not open", (ull)sent);
}

static void check_pages(const struct stat_check *check)
{
    const struct stat_worker *worker = check->worker;
    uint64_t needed = bxi_control_used(world_of(worker));
    struct stat status;

    for (int to = 0; to < world_of(worker); to++)
        if (to != worker->rank && stat_word(&worker->control->pair[to].open) == 1)
            needed += BXI_OPEN_BYTES;
    if (stat_word32(&worker->control->header.hist_count) <= BXI_HIST_MAX)
        needed += stat_word32(&worker->control->header.hist_count) * sizeof(struct bxi_hist);
    if (stat_word(&bxi_tables(worker->control)->object_rows) != 0)
        needed += BXI_OBJECTS_BYTES;
    if (stat_word(&bxi_tables(worker->control)->remote_rows) == (uint64_t)world_of(worker))
        needed += (uint64_t)world_of(worker) * sizeof(struct bxi_remote_row);
    if (stat_word32(&worker->control->header.device_open) == 1)
        needed += BXI_DEVICE_BYTES + (uint64_t)world_of(worker) * BXI_DEVICE_PAIR_BYTES;
    if (worker->segment.on_tmpfs && fstat(worker->segment.fd, &status) == 0)
        stat_expect(check, (uint64_t)status.st_blocks * 512 >= needed, "I4", -1,
                    "its open rings, histograms, objects, remote rows and device memory need %llu bytes of pages, and "
                    "it has %llu",
                    (ull)needed, (ull)status.st_blocks * 512);
}

static void check_refused(const struct stat_check *check, int peer)
{
    const struct stat_worker *worker = check->worker;
    uint64_t through = stat_word(&worker->control->pair[peer].refused_through), end;

    if (through == 0 ||
        !stat_expect(check, through % BXI_LINE == 0, "I5", peer, "refused_through is %llu, where no record ends",
                     (ull)through) ||
        /* Read after refused_through: the owner writes it before. */
        !stat_expect(check, fresh(worker, STAT_AT(control, pair, peer, refused_errno)) != 0, "I5", peer,
                     "requests were refused up to %llu for no reason", (ull)through))
        return;
    if (stat_reader(check->job, (uint32_t)peer) != NULL && peer != worker->rank &&
        stat_write_end(check->job->workers[peer], worker->rank, &end))
        stat_expect(check, (int64_t)(through - end) <= 0, "I5", peer,
                    "refused_through is %llu, and the peer has written up to %llu", (ull)through, (ull)end);
}

static void check_credit(const struct stat_check *check, int peer)
{
    const struct stat_worker *worker = check->worker, *reader = stat_reader(check->job, (uint32_t)peer);
    uint64_t credit = stat_word(&worker->credit[peer].position);

    if (credit != 0 && stat_expect(check, peer < world_of(worker), "I6", peer,
                                   "credit is %llu for a rank that the job does not have", (ull)credit))
        stat_expect(check, reader == NULL || fresh(reader, STAT_AT(control, pair, worker->rank, open)) != 0, "I6", peer,
                    "credit is %llu of a ring that the peer has not opened", (ull)credit);
}

static void check_loans(const struct stat_check *check, int peer)
{
    const struct stat_worker *worker = check->worker;
    const struct bxi_loans *loans = &bxi_tables(worker->control)->loans[peer];
    ull ended = stat_word(&loans->returned) + stat_word(&loans->taken_back), granted = stat_word(&loans->granted);
    ull borrowed = stat_word(&loans->borrowed), ever = stat_word(&loans->borrowed_total);

    stat_expect(check, stat_word(&loans->leases) <= BXI_LEASE_MAX, "I11", peer, "%llu leases are out, of %d at most",
                (ull)stat_word(&loans->leases), BXI_LEASE_MAX);
    /* `granted` only grows and is never less: it is read again, later. */
    stat_expect(check, ended <= granted || ended <= fresh(worker, STAT_AT(tables, loans, peer, granted)), "I11", peer,
                "%llu leases came back of %llu that were granted", ended, granted);
    /* One more is legal: the owner was killed, or copied, between the two words. */
    stat_expect(check, borrowed <= ever + 1 ||
                           borrowed <= fresh(worker, STAT_AT(tables, loans, peer, borrowed_total)) + 1, "I11", peer,
                "%llu leases are held of %llu ever borrowed", borrowed, ever);
}

/* ---- Two copies --------------------------------------------------------------------------------- */

#define OF_HEADER(field) offsetof(struct bxi_header, field)

/* Words that only grow. */
static const struct growing {
    const char *invariant, *name;
    size_t offset;
    int bytes;
    int rows;                   /* of BXI_LINE bytes, one a peer; 1: it is about no peer */
} growing[] = {
    { "I2", "state", OF_HEADER(state), 4, 1 },
    { "I2", "ending", OF_HEADER(ending), 8, 1 },
    { "I9", "function_count", OF_HEADER(function_count), 4, 1 },
    { "I13", "hist_count", OF_HEADER(hist_count), 4, 1 },
    { "I14", "device_open", OF_HEADER(device_open), 4, 1 },
    { "I15", "object_rows", offsetof(struct bxi_tables, object_rows), 8, 1 },
    { "I17", "remote_rows", offsetof(struct bxi_tables, remote_rows), 8, 1 },
    { "I4", "open", STAT_AT(control, pair, 0, open), 8, BXI_WORKERS_MAX },
    { "I5", "refused_through", STAT_AT(control, pair, 0, refused_through), 8, BXI_WORKERS_MAX },
    { "I6", "credit", STAT_AT(control, credit, 0, position), 8, BXI_WORKERS_MAX },
    { "I7", "the write position", STAT_AT(tables, pair_counters, 0, write_pos), 8, BXI_WORKERS_MAX },
};

static void compare_words(const struct stat_check *check, const struct growing *word, const struct bxi_control *before,
                          const struct bxi_control *after)
{
    for (int row = 0; row < word->rows; row++) {
        size_t offset = word->offset + (size_t)row * BXI_LINE;
        uint64_t was = 0, is = 0;

        memcpy(&was, (const char *)before + offset, (size_t)word->bytes);
        memcpy(&is, (const char *)after + offset, (size_t)word->bytes);
        stat_expect(check, (int64_t)(is - was) >= 0, word->invariant, word->rows > 1 ? row : -1,
                    "%s went from %llu back to %llu", word->name, (ull)was, (ull)is);
    }
}

static void compare_headers(const struct stat_check *check, const struct bxi_control *before,
                            const struct bxi_control *after)
{
    const struct bxi_header *was = &before->header, *is = &after->header;
    uint32_t old_state = stat_word32(&was->state);
    ull old_armed = stat_word(&was->armed), new_armed = stat_word(&is->armed);

    stat_expect(check, memcmp(was, is, OF_HEADER(state)) == 0 &&
                           (old_state < BXI_RUNNING ||
                            (was->arena_bytes == is->arena_bytes &&
                             memcmp(was->quota_cgroup, is->quota_cgroup, sizeof(was->quota_cgroup)) == 0 &&
                             memcmp(was->quota_thousandths, is->quota_thousandths,
                                    sizeof(was->quota_thousandths)) == 0 &&
                             memcmp(was->cpu_mask, is->cpu_mask, sizeof(was->cpu_mask)) == 0)),
                "I1", -1, "its header changes");
    if (stat_expect(check, new_armed >> 2 >= old_armed >> 2, "I3", -1, "the count of armed went from %llu back to %llu",
                    old_armed >> 2, new_armed >> 2))
        stat_expect(check, new_armed >> 2 != old_armed >> 2 || new_armed == old_armed || (new_armed & 3) == BXI_AWAKE,
                    "I3", -1, "armed went from %s to %s, and its count stayed %llu", stat_who_name(old_armed),
                    stat_who_name(new_armed), new_armed >> 2);
}

static void compare_functions(const struct stat_check *check, const struct bxi_control *before,
                              const struct bxi_control *after)
{
    /* Rows below the first count: every later copy was read after that count, so these rows are complete. */
    uint32_t count = stat_word32(&check->worker->control->header.function_count);

    for (uint32_t i = 0; i < count && i < BXI_FUNCTION_MAX; i++)
        if (!stat_expect(check, memcmp(&before->function[i], &after->function[i], sizeof(before->function[i])) == 0,
                         "I9", -1, "function %u changes", i))
            return;
}

static void compare(const struct stat_check *check)
{
    struct bxi_control *copies = calloc(2, sizeof(*copies));
    size_t count = check->findings->count;

    if (copies == NULL)
        return;
    memcpy(&copies[0], check->worker->control, sizeof(copies[0]));
    for (int look = 1; look < LOOKS && check->findings->count == count; look++) {
        const struct bxi_control *before = &copies[(look - 1) % 2];
        struct bxi_control *after = &copies[look % 2];

        if (stat_control_read(&check->worker->segment, sizeof(*after), after) < 0)
            break;
        compare_headers(check, before, after);
        for (size_t i = 0; i < sizeof(growing) / sizeof(growing[0]); i++)
            compare_words(check, &growing[i], before, after);
        if (look > 1)
            compare_functions(check, before, after);
    }
    free(copies);
}

/* ---- Jobs --------------------------------------------------------------------------------------- */

static void check_worker(const struct stat_check *check)
{
    const struct stat_worker *worker = check->worker;

    stat_expect(check, worker->found != STAT_NOISE, "I1", -1, "%s", worker->problem);
    if (worker->control == NULL)
        return;
    check->findings->workers++;
    check_header(check);
    check_functions(check);
    check_pages(check);
    stat_check_served(check);
    stat_check_hists(check);
    stat_check_objects(check);
    stat_check_remotes(check);
    stat_check_gpu(check);
    for (int peer = 0; peer < BXI_WORKERS_MAX; peer++) {
        check_open(check, peer);
        check_refused(check, peer);
        check_credit(check, peer);
        check_loans(check, peer);
    }
    for (int to = 0; to < world_of(worker); to++) {
        if (stat_word(&worker->control->pair[to].open) != 1)
            continue;
        check->findings->rings++;
        stat_check_ring(check, to);
        stat_check_leases(check, to);
        stat_check_calls(check, to);
    }
    compare(check);
}

/* The generation in the segment that has the rank's name now; 0 if there is none. */
static uint32_t generation_now(const struct stat_job *job, int rank)
{
    char shm_name[BXI_OBJECT_NAME_BYTES];
    struct stat_object segment = { 0 };
    uint32_t generation = 0;

    bxi_object_name(shm_name, (uint32_t)geteuid(), job->name, job->instance, rank);
    segment.fd = shm_open(shm_name, O_RDONLY | O_NONBLOCK, 0);
    if (segment.fd < 0)
        return 0;
    stat_pread(&segment, &generation, sizeof(generation), offsetof(struct bxi_header, generation));
    close(segment.fd);
    return generation;
}

/* The rank got a new process while the job was read, or is about to. */
static bool is_new(const struct stat_job *job, int rank)
{
    const struct stat_worker *worker = rank >= 0 ? job->workers[rank] : NULL;
    uint32_t now = rank >= 0 ? generation_now(job, rank) : 0;

    if (worker != NULL && worker->found == STAT_NOISE)
        return false;
    return now > 1 && (worker == NULL || stat_generation(worker) != now || stat_is_joining(worker));
}

static void drop_about_new(const struct stat_job *job, struct stat_findings *findings)
{
    size_t kept = 0;

    for (size_t i = 0; i < findings->count; i++)
        if (!is_new(job, findings->list[i].rank) && !is_new(job, findings->list[i].peer))
            findings->list[kept++] = findings->list[i];
    findings->count = kept;
}

/* ---- What is printed ---------------------------------------------------------------------------- */

static int violation_row(const struct stat_job *job, const struct stat_worker *none, int index, struct stat_row *row)
{
    (void)none;
    if ((size_t)index >= job->findings->count)
        return STAT_END;

    const struct stat_violation *violation = &job->findings->list[index];
    stat_put_format(row, "series", "%c", violation->invariant[0]);
    stat_put(row, "invariant", STAT_COUNT, strtoull(violation->invariant + 1, NULL, 10));
    stat_put(row, "rank", STAT_COUNT, (uint64_t)violation->rank);
    stat_put_text(row, "name", stat_peer_name(job, violation->rank));
    stat_put_if(row, violation->peer >= 0, "peer", STAT_COUNT, (uint64_t)violation->peer);
    stat_put_text(row, "text", violation->text);
    return STAT_ROW;
}

/* A worker that cannot be read, and breaks no invariant by that. */
static int unchecked_row(const struct stat_job *job, const struct stat_worker *none, int rank, struct stat_row *row)
{
    int made = stat_problem_row(job, none, rank, row);

    return made == STAT_ROW && job->workers[rank]->found == STAT_NOISE ? STAT_SKIP : made;
}

static int sums_row(const struct stat_job *job, const struct stat_worker *none, int index, struct stat_row *row)
{
    const struct stat_findings *found = job->findings;

    (void)none;
    stat_put(row, "workers_checked", STAT_COUNT, found->workers);
    stat_put(row, "rings_checked", STAT_COUNT, found->rings);
    stat_put(row, "records_checked", STAT_COUNT, found->records);
    stat_put(row, "rings_unsettled", STAT_COUNT, found->unsettled);
    stat_put(row, "violations_found", STAT_COUNT, found->count + found->dropped);
    return index == 0 ? STAT_ROW : STAT_END;
}

static const struct stat_part parts[] = {
    { .key = "violations", .shape = STAT_LIST_OF, .make = violation_row },
    { .key = "unchecked", .shape = STAT_LIST_OF, .make = unchecked_row },
    { 0 },
};

static void json_findings(const struct stat_job *job)
{
    stat_json_open(NULL, '{');
    stat_first_json(stat_job_row, job, NULL);
    stat_first_json(sums_row, job, NULL);
    stat_parts_json(parts, job, NULL);
    stat_json_close('}');
}

static void text_findings(const struct stat_job *job)
{
    const struct stat_findings *found = job->findings;
    struct stat_flow flow;

    stat_job_text(job);
    printf("\n  %llu workers, %llu rings, %llu records, %llu rings that never settled: ", (ull)found->workers,
           (ull)found->rings, (ull)found->records, (ull)found->unsettled);
    if (found->workers == 0 && found->count == 0)
        printf("nothing could be checked\n");
    else if (found->count == 0)
        printf("nothing wrong\n");
    else
        printf("%llu violations\n", (ull)(found->count + found->dropped));
    for (size_t i = 0; i < found->count; i++) {
        const struct stat_violation *violation = &found->list[i];

        stat_flow_begin(&flow, violation->invariant);
        stat_flow_add(&flow, "worker %d", violation->rank);
        stat_flow_words(&flow, stat_peer_name(job, violation->rank));
        if (violation->peer >= 0) {
            stat_flow_add(&flow, "and peer %d", violation->peer);
            stat_flow_words(&flow, stat_peer_name(job, violation->peer));
        }
        stat_flow_words(&flow, "-");
        stat_flow_words(&flow, violation->text);
        stat_flow_end(&flow);
    }
    for (struct stat_worker *worker = NULL; (worker = stat_next(job, worker)) != NULL;)
        if (worker->control == NULL && worker->found != STAT_NOISE)
            stat_problem_text(worker);
}

/* STAT_FINE, STAT_FOUND, or STAT_NOTHING if no worker of the job can be checked. */
static int check_job(struct stat_job *job, const struct stat_options *options)
{
    struct stat_findings *findings = calloc(1, sizeof(*findings));
    int status;

    if (findings == NULL)
        return STAT_NOTHING;
    job->findings = findings;
    for (struct stat_worker *worker = NULL; (worker = stat_next(job, worker)) != NULL;)
        check_worker(&(struct stat_check){ .job = job, .worker = worker, .findings = findings });
    drop_about_new(job, findings);
    if (options->json)
        json_findings(job);
    else
        text_findings(job);
    status = findings->count + findings->dropped > 0 ? STAT_FOUND : findings->workers > 0 ? STAT_FINE : STAT_NOTHING;
    free(findings->list);
    free(findings);
    job->findings = NULL;
    return status;
}

int stat_check(const struct stat_options *options)
{
    return stat_print_jobs(options, "check", STAT_READ_GPUS | STAT_READ_OBJECTS, check_job);
}
