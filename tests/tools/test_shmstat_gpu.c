/* SPDX-License-Identifier: MIT */
/*
 * shmstat and device memory: what `gpu`, `show` and the exporter print of it, and what `why` says of messages that
 * wait for it; none of its words is trusted. In a planted job (stat_plant_gpu.h).
 */
#include "stat_plant_gpu.h"
#include "stat_run.h"

#define SEEDS 24

TestSuite(shmstat_gpu, .init = gpu_plant_make, .fini = plant_remove, .timeout = 20);

/* ---- What is shown ------------------------------------------------------------------------------------- */

static const struct json *gpu_of(const struct stat_run *run, int rank)
{
    return json_get(stat_run_worker(run, rank), "gpu");
}

static void expect_borrower(const struct json *gpu)
{
    STAT_RUN_IS(gpu, "{'borrowed': [{'slab': 0, 'peer': 0, 'peer_name': 'caller', 'generation': %d, 'state': 'live',"
                " 'bytes': 67108864}, {'slab': %d, 'state': 'retiring'}],"
                " 'refused': ['" UUID_2 "'], 'known': ['" UUID_2 "']}", GENERATION, SLAB);
}

Test(shmstat_gpu, shows_devices_slabs_lanes_and_who_has_slabs_open)
{
    static const char *const commands[] = { "gpu", "show" };

    for (int i = 0; i < 2; i++) {
        struct stat_run run = stat_run_json(commands[i], plant.job);

        cr_expect_eq(run.status, 0);
        STAT_RUN_IS(gpu_of(&run, 0), "{'devices': [{'device': 0}, {'device': 1, 'uuid': '" UUID_2 "',"
                    " 'order': 'host_words', 'is_fallback': false}], 'slabs': [{'slab': 0, 'generation': %d,"
                    " 'state': 'live', 'bytes': 67108864, 'device': 0, 'open_in': [1], 'was_open_in': []},"
                    " {'slab': %d, 'state': 'retiring', 'device': 1}],"
                    " 'lanes': [{'lane': 0, 'word': %d, 'poisoned': false}, {}], 'borrowed': []}",
                    GENERATION, SLAB, WORD);
        expect_borrower(gpu_of(&run, 1));
        cr_expect_eq(stat_run_counter(stat_run_worker(&run, 1), "gpu_slabs_opened"), 5);
    }
}

Test(shmstat_gpu, prints_them_within_80_columns)
{
    static const char *const lines[] = {
        "\n  devices   device 0, " UUID_1 ", host_words\n",
        "\n  slabs     slab 0, generation 3, live, bytes 64.0 MiB, handle, device 0, open\n            in 1\n",
        "\n  lanes     lane 0, device 0, host_words, word 17\n",
        "\n  borrowed  peer 0, caller, slab 0, generation 3, live, bytes 64.0 MiB\n",
        "\n  gpu       known " UUID_2 ", refused\n            " UUID_2 "\n",
    };
    static const char *const commands[] = { "gpu", "show" };

    for (int i = 0; i < 2; i++) {
        struct stat_run run = stat_run("%s %s", commands[i], plant.job);

        for (size_t j = 0; j < sizeof(lines) / sizeof(lines[0]); j++)
            cr_expect_not_null(strstr(run.text, lines[j]), "%s lacks: %s\n%s", commands[i], lines[j], run.text);
        cr_expect_null(strstr(run.text, "slab 9"), "one that was freed: %s", run.text);
        stat_run_fits(&run);
    }
}

Test(shmstat_gpu, tells_generations_of_a_slab_apart)
{
    gpu_set_slab(0, 0, GENERATION + 1, LIVE);

    struct stat_run run = stat_run_json("gpu", plant.job);

    STAT_RUN_IS(gpu_of(&run, 0), "{'slabs': [{'slab': 0, 'open_in': []}, {'slab': %d, 'open_in': [1]}]}", SLAB);
    STAT_RUN_IS(gpu_of(&run, 1), "{'borrowed': [{'slab': 0, 'state': null}, {}]}");
}

/* I14: no byte of the region is read unless device_open is 1. */
Test(shmstat_gpu, shows_nothing_of_a_worker_without_an_open_gpu)
{
    gpu_set_open(0, 0);

    struct stat_run run = stat_run_json("gpu", plant.job);

    cr_expect_eq(gpu_of(&run, 0)->type, JSON_NULL);
    STAT_RUN_IS(gpu_of(&run, 1), "{'borrowed': [{'slab': 0, 'state': null}, {}]}");
}

static void expect_order(const char *order, bool is_fallback)
{
    struct stat_run run = stat_run_json("gpu", plant.job);

    STAT_RUN_IS(gpu_of(&run, 0), "{'devices': [{'device': 0, 'order': %s, 'is_fallback': %s}, {}]}", order,
                is_fallback ? "true" : "false");
}

Test(shmstat_gpu, tells_a_fallback_from_an_order_that_was_asked_for)
{
    bxi_store_relaxed(&gpu_region(0)->lane[0].order, BXI_GPU_EVENTS);
    expect_order("'events'", false);
    plant_set(gpu_counter(0, BXI_C_gpu_fallbacks), 1);
    expect_order("'events'", true);
    bxi_store_relaxed(&gpu_region(0)->lane[0].order, BXI_GPU_HOST_WORDS);
    expect_order("'host_words'", false);
    bxi_store_relaxed(&gpu_region(0)->lane[0].order, 0);
    expect_order("null", false);
}

Test(shmstat_gpu, shows_slabs_that_dead_workers_had_open)
{
    plant_kill(1);

    struct stat_run run = stat_run_json("gpu", plant.job);

    STAT_RUN_IS(gpu_of(&run, 0), "{'slabs': [{'slab': 0, 'open_in': [], 'was_open_in': [1]}, {}]}");
    expect_borrower(gpu_of(&run, 1));
}

Test(shmstat_gpu, shows_how_far_a_poisoned_lane_had_come)
{
    plant_kill(0);
    plant_set(&gpu_region(0)->word[0].value, BXI_GPU_POISON + WORD);

    struct stat_run run = stat_run_json("gpu", plant.job);

    STAT_RUN_IS(gpu_of(&run, 0), "{'lanes': [{'lane': 0, 'word': %d, 'poisoned': true}, {}]}", WORD);
}

Test(shmstat_gpu, exports_devices_slabs_and_borrowed_slabs)
{
    static const char *const lines[] = {
        "gpu_slabs{%s,worker=\"caller\",rank=\"0\",uuid=\"" UUID_1 "\"} 1\n",
        "gpu_slabs_retiring{%s,worker=\"caller\",rank=\"0\",uuid=\"" UUID_2 "\"} 1\n",
        "gpu_slab_bytes{%s,worker=\"caller\",rank=\"0\",uuid=\"" UUID_1 "\"} 67108864\n",
        "gpu_order_is_fallback{%s,worker=\"caller\",rank=\"0\",uuid=\"" UUID_1 "\",order=\"events\"} 1\n",
        "gpu_slabs_borrowed{%s,worker=\"callee\",rank=\"1\",peer=\"0\"} 2\n",
        "gpu_refused_devices{%s,worker=\"callee\",rank=\"1\"} 1\n",
        "gpu_lanes_poisoned{%s,worker=\"caller\",rank=\"0\"} 1\n",
        "gpu_bytes_used{%s,worker=\"caller\",rank=\"0\"} 4096\n",
        "gpu_slabs_opened_total{%s,worker=\"callee\",rank=\"1\"} 5\n",
    };

    bxi_store_relaxed(&gpu_region(0)->lane[0].order, BXI_GPU_EVENTS);
    plant_set(gpu_counter(0, BXI_C_gpu_fallbacks), 1);
    plant_set(gpu_counter(0, BXI_C_gpu_bytes_used), 4096);
    plant_kill(0);
    plant_set(&gpu_region(0)->word[5].value, BXI_GPU_POISON);

    struct stat_run run = stat_run("show %s --prometheus", plant.job);

    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        const char *labels = strstr(lines[i], "%s");
        char line[256];

        snprintf(line, sizeof(line), "\nboxcar_%.*sjob=\"%s\"%s", (int)(labels - lines[i]), lines[i], plant.job,
                 labels + 2);
        cr_expect_not_null(strstr(run.text, line), "%s\n%s", line, run.text);
    }
    cr_expect_not_null(strstr(run.text, "# TYPE boxcar_gpu_bytes_used gauge\n"));
    cr_expect_not_null(strstr(run.text, "# TYPE boxcar_gpu_slabs_opened_total counter\n"));
}

/* ---- why --------------------------------------------------------------------------------------------- */

/* A call by the caller, unread in the ring or read. */
static void make_call(bool is_read)
{
    struct bxi_call_row *rows = bxi_segment_at(&plant.segment[0], bxi_calls_offset(1)), *row = rows + 5;

    cr_assert(plant_put(0, 100));
    plant_count(0);
    if (is_read)
        cr_assert(plant_take(1));
    plant_set(&row->end_pos, plant.writer[0].write_pos);
    plant_set(&row->deadline_ns, UINT64_MAX);
    plant_set(&row->since, UINT64_C(1) << 8 | 1);
    plant_set(&row->id, 9 << 16 | 5);
}

static bool says_opening(const char *sentence)
{
    struct stat_run run = stat_run("why caller %s", plant.job);
    bool says = strstr(run.text, sentence) != NULL;

    cr_expect_eq(run.status, 0);
    cr_expect(says == (strstr(run.text, " is opening ") != NULL), "%s", run.text);
    return says;
}

Test(shmstat_gpu, why_says_that_a_message_waits_for_a_slab)
{
    static const char *const sentence = "\ncallee is opening device memory of caller: the message that names it, and "
                                        "what is behind it, waits for that.\n";

    make_call(false);
    cr_expect(!says_opening(sentence));         /* two held, two open */
    plant_set(&gpu_held(1, 0)->generation[20], 1);
    cr_expect(says_opening(sentence));
    plant_set(gpu_counter(1, BXI_C_gpu_slabs_opened), 6);
    cr_expect(!says_opening(sentence));
    plant_set(gpu_counter(1, BXI_C_gpu_slabs_opened), 0);
    plant_set(gpu_counter(1, BXI_C_gpu_slabs_closed), 0);
    memset(gpu_held(1, 0), 0, sizeof(*gpu_held(1, 0)));
    cr_expect(!says_opening(sentence));
    plant_set(&gpu_held(1, 1)->generation[0], 1);         /* garbage, and not a slab of the caller */
    cr_expect(!says_opening(sentence));
}

Test(shmstat_gpu, why_says_that_a_reply_waits_for_a_slab)
{
    make_call(true);
    plant_set(&gpu_held(0, 1)->generation[0], 1);
    cr_expect(says_opening("\ncaller is opening device memory of callee: "));
    plant_set(gpu_counter(0, BXI_C_gpu_slabs_opened), 1);
    cr_expect(!says_opening("\ncaller is opening device memory of callee: "));
}

/* ---- Noise ------------------------------------------------------------------------------------------- */

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 11 ^ *state << 31;
}

/* Noise everywhere or in places; the head is valid for two of three seeds. */
static void make_noise(int rank, uint64_t seed)
{
    unsigned char *bytes = (unsigned char *)gpu_region(rank);
    uint64_t state = seed * 77777 + (uint64_t)rank;

    for (size_t at = 0; at < sizeof(struct bxi_gpu_region); at += 8) {
        uint64_t word = next_random(&state);

        if (seed % 2 == 0 || word % 16 == 0)
            memcpy(bytes + at, &word, sizeof(word));
    }
    for (int peer = 0; peer < 2; peer++)
        for (int i = 0; i < BXI_GPU_SLABS; i++)
            if (seed % 4 < 2 || next_random(&state) % 16 == 0)
                plant_set(&gpu_held(rank, peer)->generation[i], next_random(&state) >> (next_random(&state) % 64));
    if (seed % 3 != 0) {
        plant_set(&gpu_region(rank)->head.magic, BXI_GPU_MAGIC);
        gpu_region(rank)->head.layout = BXI_GPU_LAYOUT;
    }
    if (seed % 3 == 1)
        bxi_store_relaxed(&gpu_region(rank)->head.device_count, (uint32_t)(seed % (BXI_GPU_DEVICES + 1)));
}

Test(shmstat_gpu, noise_is_no_crash, .timeout = 120)
{
    static const char *const commands[] = { "gpu", "gpu --json", "show", "show --json", "show --prometheus",
                                            "why caller", "check", "check --json" };

    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        make_call(false);
        for (int rank = 0; rank < 2; rank++)
            make_noise(rank, seed);
        for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
            struct stat_run run = stat_run("%s %s", commands[i], plant.job);
            bool is_check = strncmp(commands[i], "check", 5) == 0, is_json = strstr(commands[i], "--json") != NULL;

            cr_expect_eq(run.status, is_check, "seed %d: shmstat %s: status %d\n%.2000s", (int)seed, commands[i],
                         run.status, run.text);
            cr_expect(!is_json || run.json != NULL, "seed %d: shmstat %s: no JSON", (int)seed, commands[i]);
        }
        plant_remove();
        gpu_plant_make();
    }
}

Test(shmstat_gpu, an_invalid_region_is_reported_in_a_sentence)
{
    plant_set(&gpu_region(0)->head.magic, 0);

    struct stat_run run = stat_run_json("gpu", plant.job);

    STAT_RUN_IS(gpu_of(&run, 0), "{'slabs': [],"
                " 'problem': 'it says that it has a GPU open, and its region of device memory is none'}");
}
