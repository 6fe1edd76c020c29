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
#include "shmstat.h"
#include "text.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOOKS 4

typedef unsigned long long ull;

/* One word, read again now; 0 if it cannot be read. */
static uint64_t fresh(const struct stat_worker *worker, size_t offset)
{
    uint64_t word = 0;

    stat_pread(&worker->segment, &word, sizeof(word), offset);
    return word;
}

#define ROW(of, table, row, field) \
    (offsetof(struct bxi_##of, table) + (size_t)(row) * BXI_LINE + offsetof(struct bxi_##table, field))

static int world_of(const struct stat_worker *worker)
{
    return (int)worker->control->header.world_size;     /* checked by stat_job_read */
}

/* ---- One copy ----------------------------------------------------------------------------------- */

static void check_header(const struct stat_job *job, const struct stat_worker *worker,
                         struct stat_findings *findings)
{
    const struct bxi_header *header = &worker->control->header;

    if (world_of(worker) != stat_job_size(job))
        stat_violate(findings, AT(1, worker, -1), "its header says %u workers, where another of the job says %d",
                     header->world_size, stat_job_size(job));
    if (worker->state < BXI_STARTING || worker->state > BXI_LEFT)
        stat_violate(findings, AT(2, worker, -1), "state is %u, which is none", worker->state);
    /* Relaxed: a private copy. */
    if (bxi_load_relaxed((bxi_a32 *)&header->device_open) > 1)
        stat_violate(findings, AT(14, worker, -1), "device_open is %u, which is neither 0 nor 1",
                     bxi_load_relaxed((bxi_a32 *)&header->device_open));
    if (header->arena_bytes == 0)
        return;             /* not known yet */
    if (stat_word(&header->arena_used) > header->arena_bytes)
        stat_violate(findings, AT(11, worker, -1), "arena_used is %llu in an arena of %llu bytes",
                     (ull)stat_word(&header->arena_used), (ull)header->arena_bytes);
    if (stat_word(&header->arena_committed) > header->arena_bytes)
        stat_violate(findings, AT(11, worker, -1), "arena_committed is %llu in an arena of %llu bytes",
                     (ull)stat_word(&header->arena_committed), (ull)header->arena_bytes);
}

static void check_functions(const struct stat_worker *worker, struct stat_findings *findings)
{
    /* Relaxed: a private copy. */
    uint32_t count = bxi_load_relaxed(&worker->control->header.function_count);

    if (count > BXI_FUNCTION_MAX) {
        stat_violate(findings, AT(9, worker, -1), "function_count is %u, and the table has %d rows", count,
                     BXI_FUNCTION_MAX);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct bxi_function row;

        /* Read after the count: the copy's row may be older than its count. */
        if (stat_pread(&worker->segment, &row, sizeof(row),
                       offsetof(struct bxi_control, function) + i * sizeof(row)) < 0)
            return;
        if (row.name[0] == '\0' || memchr(row.name, 0, BXI_NAME_BYTES) == NULL)
            stat_violate(findings, AT(9, worker, -1), "function %u of %u has no name", i, count);
        else if (row.kind < 1 || row.kind > 4)
            stat_violate(findings, AT(9, worker, -1), "function %u of %u has kind %u, which is none", i, count,
                         row.kind);
    }
}

static void check_open(const struct stat_worker *worker, int to, struct stat_findings *findings)
{
    uint64_t open = stat_word(&worker->control->pair[to].open);
    bool is_peer = to < world_of(worker);

    if (open > 1 || (open == 1 && !is_peer))
        stat_violate(findings, AT(4, worker, to), is_peer ? "open is %llu, which is neither 0 nor 1"
                                                          : "open is %llu for a rank that the job does not have",
                     (ull)open);
    /* The ring is opened before the first frame is counted. */
    else if (open == 0 && stat_word(&bxi_tables(worker->control)->pair_counters[to].frames_sent) != 0 &&
             fresh(worker, ROW(control, pair, to, open)) == 0)
        stat_violate(findings, AT(4, worker, to), "%llu frames were sent through a ring that is not open",
                     (ull)stat_word(&bxi_tables(worker->control)->pair_counters[to].frames_sent));
}

static void check_pages(const struct stat_worker *worker, struct stat_findings *findings)
{
    uint64_t needed = BXI_CONTROL_BYTES;
    struct stat status;

    for (int to = 0; to < world_of(worker); to++)
        if (to != worker->rank && stat_word(&worker->control->pair[to].open) == 1)
            needed += BXI_OPEN_BYTES;
    /* Relaxed: a private copy. */
    if (bxi_load_relaxed(&worker->control->header.hist_count) <= BXI_HIST_MAX)
        needed += bxi_load_relaxed(&worker->control->header.hist_count) * sizeof(struct bxi_hist);
    if (stat_word(&bxi_tables(worker->control)->object_rows) != 0)
        needed += BXI_OBJECTS_BYTES;
    if (bxi_load_relaxed(&worker->control->header.device_open) == 1)
        needed += BXI_DEVICE_BYTES + (uint64_t)world_of(worker) * BXI_DEVICE_PAIR_BYTES;
    if (!worker->segment.on_tmpfs || fstat(worker->segment.fd, &status) < 0)
        return;
    if ((uint64_t)status.st_blocks * 512 < needed)
        stat_violate(findings, AT(4, worker, -1),
                     "its open rings, histograms, objects and device memory need %llu bytes of pages, and it has %llu",
                     (ull)needed, (ull)status.st_blocks * 512);
}

static void check_refused(const struct stat_job *job, const struct stat_worker *worker, int peer,
                          struct stat_findings *findings)
{
    const struct bxi_pair *pair = &worker->control->pair[peer];
    uint64_t through = stat_word(&pair->refused_through), end;

    if (through == 0)
        return;
    if (through % BXI_LINE != 0)
        stat_violate(findings, AT(5, worker, peer), "refused_through is %llu, where no record ends", (ull)through);
    /* Read after refused_through: the owner writes it before. */
    else if (fresh(worker, ROW(control, pair, peer, refused_errno)) == 0)
        stat_violate(findings, AT(5, worker, peer), "requests were refused up to %llu for no reason", (ull)through);
    else if (stat_reader(job, (uint32_t)peer) != NULL && peer != worker->rank &&
             stat_write_end(job->workers[peer], worker->rank, &end) && (int64_t)(through - end) > 0)
        stat_violate(findings, AT(5, worker, peer), "refused_through is %llu, and the peer has written up to %llu",
                     (ull)through, (ull)end);
}

static void check_credit(const struct stat_job *job, const struct stat_worker *worker, int peer,
                         struct stat_findings *findings)
{
    uint64_t credit = stat_word(&worker->credit[peer].position);

    if (credit == 0)
        return;
    if (peer >= world_of(worker))
        stat_violate(findings, AT(6, worker, peer), "credit is %llu for a rank that the job does not have",
                     (ull)credit);
    else if (stat_reader(job, (uint32_t)peer) != NULL &&
             fresh(job->workers[peer], ROW(control, pair, worker->rank, open)) == 0)
        stat_violate(findings, AT(6, worker, peer), "credit is %llu of a ring that the peer has not opened",
                     (ull)credit);
}

static void check_loans(const struct stat_worker *worker, int peer, struct stat_findings *findings)
{
    const struct bxi_loans *loans = &bxi_tables(worker->control)->loans[peer];
    uint64_t ended = stat_word(&loans->returned) + stat_word(&loans->taken_back);
    uint64_t borrowed = stat_word(&loans->borrowed);

    if (stat_word(&loans->leases) > BXI_LEASE_MAX)
        stat_violate(findings, AT(11, worker, peer), "%llu leases are out, of %d at most",
                     (ull)stat_word(&loans->leases), BXI_LEASE_MAX);
    /* `granted` only grows and is never less: it is read again, later. */
    if (ended > stat_word(&loans->granted) && ended > fresh(worker, ROW(tables, loans, peer, granted)))
        stat_violate(findings, AT(11, worker, peer), "%llu leases came back of %llu that were granted", (ull)ended,
                     (ull)stat_word(&loans->granted));
    /* One more is legal: the owner was killed, or copied, between the two words. */
    if (borrowed > stat_word(&loans->borrowed_total) + 1 &&
        borrowed > fresh(worker, ROW(tables, loans, peer, borrowed_total)) + 1)
        stat_violate(findings, AT(11, worker, peer), "%llu leases are held of %llu ever borrowed", (ull)borrowed,
                     (ull)stat_word(&loans->borrowed_total));
}

/* ---- Two copies --------------------------------------------------------------------------------- */

static void compare_headers(const struct stat_worker *worker, const struct bxi_control *before,
                            const struct bxi_control *after, struct stat_findings *findings)
{
    const struct bxi_header *was = &before->header, *is = &after->header;
    /* Relaxed: private copies. */
    uint32_t old_state = bxi_load_relaxed((bxi_a32 *)&was->state), new_state = bxi_load_relaxed((bxi_a32 *)&is->state);
    uint32_t was_open = bxi_load_relaxed((bxi_a32 *)&was->device_open);
    uint64_t old_armed = stat_word(&was->armed), new_armed = stat_word(&is->armed);

    if (was_open == 1 && bxi_load_relaxed((bxi_a32 *)&is->device_open) == 0)
        stat_violate(findings, AT(14, worker, -1), "device_open went from 1 back to 0");
    if (memcmp(was, is, offsetof(struct bxi_header, state)) != 0 ||
        (old_state >= BXI_RUNNING && (was->arena_bytes != is->arena_bytes ||
                                      memcmp(was->cpu_mask, is->cpu_mask, sizeof(was->cpu_mask)) != 0)))
        stat_violate(findings, AT(1, worker, -1), "its header changes");
    if (new_state < old_state)
        stat_violate(findings, AT(2, worker, -1), "state went from %u (%s) back to %u (%s)", old_state,
                     stat_state_name(old_state), new_state, stat_state_name(new_state));
    if (new_armed >> 2 < old_armed >> 2)
        stat_violate(findings, AT(3, worker, -1), "the count of armed went from %llu back to %llu",
                     (ull)(old_armed >> 2), (ull)(new_armed >> 2));
    else if (new_armed >> 2 == old_armed >> 2 && new_armed != old_armed && (new_armed & 3) != BXI_AWAKE)
        stat_violate(findings, AT(3, worker, -1), "armed went from %s to %s, and its count stayed %llu",
                     stat_who_name(old_armed), stat_who_name(new_armed), (ull)(new_armed >> 2));
}

static void compare_functions(const struct stat_worker *worker, const struct bxi_control *before,
                              const struct bxi_control *after, struct stat_findings *findings)
{
    /* Relaxed: private copies. */
    uint32_t was = bxi_load_relaxed((bxi_a32 *)&before->header.function_count);
    uint32_t is = bxi_load_relaxed((bxi_a32 *)&after->header.function_count);

    if (is < was) {
        stat_violate(findings, AT(9, worker, -1), "function_count went from %u back to %u", was, is);
        return;
    }
    /* Rows below the first count: every later copy was read after that count, so these rows are complete. */
    was = bxi_load_relaxed(&worker->control->header.function_count);
    for (uint32_t i = 0; i < was && i < BXI_FUNCTION_MAX; i++)
        if (memcmp(&before->function[i], &after->function[i], sizeof(before->function[i])) != 0) {
            stat_violate(findings, AT(9, worker, -1), "function %u changes", i);
            return;
        }
}

static void compare_pairs(const struct stat_worker *worker, const struct bxi_control *before,
                          const struct bxi_control *after, struct stat_findings *findings)
{
    for (int peer = 0; peer < BXI_WORLD_MAX; peer++) {
        uint64_t was = stat_word(&before->credit[peer].position), is = stat_word(&after->credit[peer].position);

        if (stat_word(&before->pair[peer].open) == 1 && stat_word(&after->pair[peer].open) != 1)
            stat_violate(findings, AT(4, worker, peer), "open went from 1 back to %llu",
                         (ull)stat_word(&after->pair[peer].open));
        if ((int64_t)(stat_word(&after->pair[peer].refused_through) - stat_word(&before->pair[peer].refused_through)) <
            0)
            stat_violate(findings, AT(5, worker, peer), "refused_through went from %llu back to %llu",
                         (ull)stat_word(&before->pair[peer].refused_through),
                         (ull)stat_word(&after->pair[peer].refused_through));
        if ((int64_t)(is - was) < 0)
            stat_violate(findings, AT(6, worker, peer), "credit went from %llu back to %llu", (ull)was, (ull)is);
        was = stat_word(&bxi_tables_view(before)->pair_counters[peer].write_pos);
        is = stat_word(&bxi_tables_view(after)->pair_counters[peer].write_pos);
        if ((int64_t)(is - was) < 0)
            stat_violate(findings, AT(7, worker, peer), "the write position went from %llu back to %llu", (ull)was,
                         (ull)is);
    }
}

static void compare(const struct stat_worker *worker, struct stat_findings *findings)
{
    struct bxi_control *copies = calloc(2, sizeof(*copies));
    size_t count = findings->count;

    if (copies == NULL)
        return;
    memcpy(&copies[0], worker->control, sizeof(copies[0]));
    for (int look = 1; look < LOOKS && findings->count == count; look++) {
        const struct bxi_control *before = &copies[(look - 1) % 2];
        struct bxi_control *after = &copies[look % 2];

        if (stat_pread(&worker->segment, after, sizeof(*after), 0) < 0)
            break;
        compare_headers(worker, before, after, findings);
        if (look > 1)
            compare_functions(worker, before, after, findings);
        compare_pairs(worker, before, after, findings);
    }
    free(copies);
}

/* ---- Jobs --------------------------------------------------------------------------------------- */

static void check_worker(const struct stat_job *job, const struct stat_worker *worker,
                         struct stat_findings *findings)
{
    if (worker->found == STAT_NOISE)
        stat_violate(findings, AT(1, worker, -1), "%s", worker->problem);
    if (worker->control == NULL)
        return;
    findings->workers++;
    check_header(job, worker, findings);
    check_functions(worker, findings);
    check_pages(worker, findings);
    stat_check_served(worker, findings);
    stat_check_hists(job, worker, findings);
    stat_check_objects(worker, findings);
    stat_check_gpu(job, worker, findings);
    for (int peer = 0; peer < BXI_WORLD_MAX; peer++) {
        check_open(worker, peer, findings);
        check_refused(job, worker, peer, findings);
        check_credit(job, worker, peer, findings);
        check_loans(worker, peer, findings);
    }
    for (int to = 0; to < world_of(worker); to++) {
        if (stat_word(&worker->control->pair[to].open) != 1)
            continue;
        findings->rings++;
        stat_check_ring(job, worker, to, findings);
        stat_check_leases(job, worker, to, findings);
        stat_check_calls(worker, to, findings);
    }
    compare(worker, findings);
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
    const struct stat_violation *violation = &job->findings->list[index];

    (void)none;
    if ((size_t)index >= job->findings->count)
        return STAT_END;

    const char *name = stat_peer_name(job, violation->rank);
    const char *peer = violation->peer >= 0 ? stat_peer_name(job, violation->peer) : "";

    stat_put_format(row, "series", "%c", violation->series);
    stat_put(row, "invariant", STAT_COUNT, (uint64_t)violation->invariant);
    stat_put(row, "rank", STAT_COUNT, (uint64_t)violation->rank);
    stat_put_text(row, "name", name);
    stat_put_if(row, violation->peer >= 0, "peer", STAT_COUNT, (uint64_t)violation->peer);
    stat_put_text(row, "text", violation->text);
    stat_put_format(row, ".name", "%s%s", name[0] != '\0' ? " " : "", name);
    stat_put_format(row, ".peer", "%s%s", peer[0] != '\0' ? " " : "", peer);
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
    stat_put_text(row, ".unsettled", found->unsettled != 0 ? "" : NULL);
    return index == 0 ? STAT_ROW : STAT_END;
}

static const struct stat_part parts[] = {
    { .key = "violations", .shape = STAT_LIST_OF, .make = violation_row, .label = "{series}{invariant}",
      .pattern = "worker {rank}{.name}|and peer {peer}{.peer}|-|{text...}" },
    { .key = "unchecked", .shape = STAT_LIST_OF, .make = unchecked_row, .label = "unchecked",
      .pattern = "worker {rank} -|{problem...}" },
    { .make = sums_row, .label = "unsettled",
      .pattern = "{.unsettled}{rings_unsettled} rings moved each time they were looked at" },
    { 0 },
};

static void print_findings(const struct stat_job *job, bool json)
{
    const struct stat_findings *found = job->findings;
    struct stat_row row;

    if (json) {
        stat_row_begin(&row);
        sums_row(job, NULL, 0, &row);
        stat_json_open(NULL, '{');
        stat_json_job(job);
        stat_row_json(&row);
        stat_parts_json(parts, job, NULL);
        stat_json_close('}');
        return;
    }
    stat_job_text(job);
    printf("\n  %llu workers, %llu rings, %llu records: ", (ull)found->workers, (ull)found->rings,
           (ull)found->records);
    if (found->workers == 0 && found->count == 0)
        printf("nothing could be checked\n");
    else if (found->count == 0)
        printf("nothing wrong\n");
    else
        printf("%llu violations\n", (ull)(found->count + found->dropped));
    stat_parts_text(parts, job, NULL);
}

/* STAT_FINE, STAT_FOUND, or STAT_NOTHING if no worker of the job can be checked. */
static int check_job(struct stat_job *job, const struct stat_options *options)
{
    struct stat_findings findings = { 0 };

    for (struct stat_worker *worker = NULL; (worker = stat_next(job, worker)) != NULL;)
        check_worker(job, worker, &findings);
    drop_about_new(job, &findings);
    job->findings = &findings;
    print_findings(job, options->json);
    free(findings.list);
    return findings.count + findings.dropped > 0 ? STAT_FOUND : findings.workers > 0 ? STAT_FINE : STAT_NOTHING;
}

int stat_check(const struct stat_options *options)
{
    return stat_print_jobs(options, "check", STAT_READ_GPUS | STAT_READ_OBJECTS, check_job);
}
