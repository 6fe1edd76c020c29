/* SPDX-License-Identifier: MIT */
/*
 * The command: runs schedules of programs in child processes, counts them, and prints what they find.
 *
 * A child runs many schedules. One that crashes is a finding too. Its results are in memory that the parent shares.
 */
#include "sim.h"

#include <glob.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define REPLAYED 64             /* schedules of each program that are run once more with --replay */
#define MADE_AGAIN 8            /* of these, by their choices */
#define FINDINGS 10             /* of a program, with --fail */
#define PLACES 16384            /* that are remembered; of two in one slot the last */

static struct results {
    uint64_t index, seed, schedules, points, switches, hash, hashes[REPLAYED], last_points, last_switches;
    bool found, complete;
    char finding[1024], refusal[64];
} *results;

bool sim_long_stops;

static struct {
    const char *program;
    uint64_t seed, schedules;
    double seconds;
    uint32_t preemptions;
    const char *refusal;            /* of --fail; "all", "every" */
    const char *choices;            /* of --choices */
    const char *relax;              /* of --relax */
    bool has_seed, all, trace, replay, shrink;
} options = { .schedules = UINT64_MAX, .seconds = 60 };

static bool fails_every(void)
{
    return options.refusal != NULL && strcmp(options.refusal, "every") == 0;
}

static bool fails_all(void)
{
    return fails_every() || (options.refusal != NULL && strcmp(options.refusal, "all") == 0);
}

bool sim_can_refuse(void)
{
    return options.refusal != NULL;
}

/* CPU time of the children that have ended. */
static double cpu_seconds(void)
{
    struct rusage used;

    getrusage(RUSAGE_CHILDREN, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* ---- what a line says of places --------------------------------------------------------------------- */

static struct {
    FILE *to, *from;
    size_t address[PLACES];
    char text[PLACES][96];
} places;

static void start_addr2line(void)
{
    int to[2], from[2];
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/exe", (int)getpid());
    if (pipe(to) < 0 || pipe(from) < 0)
        exit(2);
    if (fork() == 0) {
        dup2(to[0], 0);
        dup2(from[1], 1);
        close(to[1]);
        execlp("addr2line", "addr2line", "-e", path, "-fsp", (char *)NULL);
        _exit(2);
    }
    close(to[0]);
    close(from[1]);
    places.to = fdopen(to[1], "w");
    places.from = fdopen(from[0], "r");
}

/* Function and line of an address. */
static const char *place_of(size_t address)
{
    size_t at = (address * 0x9e3779b97f4a7c15 >> 32) % PLACES;
    char *text = places.text[at];

    if (places.address[at] == address)
        return text;
    if (places.to == NULL)
        start_addr2line();
    fprintf(places.to, "%#zx\n", address - 1);
    fflush(places.to);
    places.address[at] = address;
    if (fgets(text, sizeof places.text[0], places.from) == NULL)
        snprintf(text, sizeof places.text[0], "%#zx", address);
    text[strcspn(text, "\n(")] = '\0';
    return text;
}

/* Prints a text; each "@0x401234" in it becomes a place. */
static void print_places(const char *text)
{
    const char *at;

    while ((at = strstr(text, "@0x")) != NULL) {
        char *end;
        size_t address = strtoull(at + 1, &end, 16);

        printf("%.*s%s", (int)(at - text), text, place_of(address));
        text = end;
    }
    fputs(text, stdout);
}

/* ---- the child ------------------------------------------------------------------------------------- */

static void run_some(const struct sim_program *const *copies, uint64_t seed, uint64_t most, double until)
{
    for (uint64_t i = 0; i < most && !results->found; i++) {
        results->seed = seed + i;
        sim_run(copies, seed + i);
        results->schedules++;
        results->points += sim_schedule.points;
        results->switches += sim_schedule.switches;
        results->last_points = sim_schedule.points;
        results->last_switches = sim_schedule.switches;
        results->hash = sim_schedule.hash;
        if (results->schedules <= REPLAYED)
            results->hashes[results->schedules - 1] = sim_schedule.hash;
        results->found = sim_schedule.found;
        memcpy(results->finding, sim_schedule.finding, sizeof results->finding);
        if (options.all && !results->found && !sim_next_of_all()) {
            results->complete = true;
            return;
        }
        if ((i & 15) == 15 && seconds() > until)
            return;
    }
}

/* A call of each place that the schedule of the seed has, or every call, fails in a schedule of its own; from the
 * index on. */
static void run_failing(const struct sim_program *const *copies, uint64_t seed, uint64_t index, double until)
{
    uint64_t count;

    sim_refusals_choose(UINT64_MAX);
    run_some(copies, seed, 1, until);
    count = sim_refusals_plan(seed, fails_every());
    for (; index < count && !results->found && seconds() < until; index++) {
        sim_refusals_choose(index);
        sim_refusals_write(results->refusal, sizeof results->refusal);
        results->index = index + 1;
        run_some(copies, seed, 1, until);
    }
    results->complete = index >= count;
}

static void print_trace(int lines[2])
{
    FILE *from = fdopen(lines[0], "r");
    char line[2048];

    close(lines[1]);
    while (from != NULL && fgets(line, sizeof line, from) != NULL)
        print_places(line);
    fclose(from);
}

void __gcov_dump(void) __attribute__((weak));       /* `make coverage` alone */

static void run_child(const struct sim_program *const *copies, uint64_t seed, uint64_t most, double until)
{
    int status = 0, lines[2] = { -1, -1 };
    pid_t pid;

    fflush(stdout);
    if (options.trace && pipe(lines) < 0)
        exit(2);
    pid = fork();
    if (pid < 0) {
        perror("sim: fork");
        exit(2);
    }
    if (pid == 0) {
        sim_schedule.trace = options.trace;
        if (options.trace)
            dup2(lines[1], 1);
        if (options.all)
            sim_choose_all(options.preemptions);
        if (options.refusal != NULL && !fails_all())
            snprintf(results->refusal, sizeof results->refusal, "%s", options.refusal);
        if (fails_all())
            run_failing(copies, seed, results->index, until);
        else
            run_some(copies, seed, most, until);
        fflush(stdout);
        if (__gcov_dump != NULL)
            __gcov_dump();
        _exit(0);
    }
    if (options.trace)
        print_trace(lines);
    waitpid(pid, &status, 0);
    if (!results->found && status != 0) {
        sim_names_left();
        results->found = true;
        snprintf(results->finding, sizeof results->finding, "the process ends with %s %d",
                 WIFSIGNALED(status) ? "signal" : "status",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    }
}

static void print_command(const char *what, const struct sim_program *program, uint64_t seed)
{
    printf("   %s: build/sim/tests/sim --program %s --seed %llu%s%s%s", what, program->name, (unsigned long long)seed,
           sim_long_stops ? " --long-stops" : "", results->refusal[0] != '\0' ? " --fail " : "", results->refusal);
}

static void print_finding(const struct sim_program *program)
{
    printf("FOUND %s: seed %llu: ", program->name, (unsigned long long)results->seed);
    print_places(results->finding);
    putchar('\n');
    if (options.all)
        printf("   in path %llu of the search with %u preemptions\n", (unsigned long long)results->schedules,
               options.preemptions);
    else {
        print_command("replay", program, results->seed);
        printf(" --trace    (--shrink: a shorter one)\n");
    }
}

/* ---- a shorter schedule ------------------------------------------------------------------------------ */

static struct {
    const struct sim_program *const *copies;
    struct results first;
    uint64_t runs;
    double until;
} shrinks;

static void run_one(const struct sim_program *const *copies, uint64_t seed, enum sim_mode mode)
{
    memset(results, 0, sizeof *results);
    sim_choices_begin(mode);
    run_child(copies, seed, 1, seconds() + 60);
    shrinks.runs++;
}

/* Two findings are the same if what is before the first colon is, without its numbers, and the places of a race are. */
static bool same_finding(const char *one, const char *other)
{
    const char *at[2] = { strstr(one, "@0x"), strstr(other, "@0x") };

    for (; *one != '\0' && *one != ':'; one++, other++) {
        one += strspn(one, "0123456789");
        other += strspn(other, "0123456789");
        if (*one != *other)
            return false;
    }
    while (at[0] != NULL && at[1] != NULL) {
        if (strncmp(at[0], at[1], strcspn(at[0], ",:")) != 0)
            return false;
        for (int i = 0; i < 2; i++)
            at[i] = strstr(at[i] + 1, "@0x");
    }
    return at[0] == at[1];
}

static bool is_late(void)
{
    return seconds() > shrinks.until;
}

static bool finding_stays(void)
{
    if (is_late())
        return false;
    run_one(shrinks.copies, options.seed, SIM_MAKES_AGAIN);
    return results->found && results->last_points <= shrinks.first.last_points &&
           same_finding(shrinks.first.finding, results->finding);
}

static void print_length(const char *what, const struct results *of)
{
    printf("%s: %u choices, %llu points, %llu switches: ", what, sim_choices_count(),
           (unsigned long long)of->last_points, (unsigned long long)of->last_switches);
    print_places(of->finding);
    putchar('\n');
}

static bool shrink(const struct sim_program *const *copies)
{
    double began = seconds();
    bool trace = options.trace;

    options.trace = false;
    run_one(copies, options.seed, SIM_WRITES);
    sim_choices_sort();
    if (!results->found) {
        printf("%s: seed %llu finds nothing\n", copies[0]->name, (unsigned long long)options.seed);
        return true;
    }
    shrinks.copies = copies;
    shrinks.first = *results;
    shrinks.until = seconds() + options.seconds;
    print_length("seed", results);
    sim_points_most = results->last_points > sim_points_most / 2 ? sim_points_most : 2 * results->last_points + 100000;
    if (!finding_stays() || results->hash != shrinks.first.hash) {
        printf("the choices of the seed do not make its schedule again\n");
        return false;
    }
    sim_choices_shrink(finding_stays, is_late);
    shrinks.until = 1e300;
    options.trace = trace;
    finding_stays();
    print_length("shorter", results);
    print_command("replay", copies[0], options.seed);
    printf(" --choices '");
    sim_choices_print();
    printf("' --trace\n%llu schedules in %.2f s\n", (unsigned long long)shrinks.runs,
           seconds() - began);
    return false;
}

/* The first seeds once more, each in a process of its own: have they the same traces? The first few also by their
 * choices. */
static bool replays(const struct sim_program *const *copies)
{
    struct results first = *results;

    for (uint64_t i = 0; i < first.schedules && i < REPLAYED; i++) {
        bool same;

        run_one(copies, options.seed + i, SIM_WRITES);
        same = results->hash == first.hashes[i];
        if (same && i < MADE_AGAIN) {
            sim_choices_sort();
            run_one(copies, options.seed + i, SIM_MAKES_AGAIN);
            same = results->hash == first.hashes[i];
        }
        if (!same) {
            printf("%s: two runs of seed %llu differ\n", copies[0]->name, (unsigned long long)(options.seed + i));
            return false;
        }
    }
    return true;
}

/* ---- one program ----------------------------------------------------------------------------------- */

/* --fail all: each place of the seed, then those of the next one; every: each call. Goes on behind a finding. */
static bool run_failures(const struct sim_program *const *copies)
{
    double began = seconds();
    uint64_t schedules = 0, seed = options.seed, findings = 0;

    for (; seed - options.seed < options.schedules && seconds() < began + options.seconds; seed++) {
        memset(results, 0, sizeof *results);
        while (!results->complete && findings < FINDINGS && seconds() < began + options.seconds) {
            run_child(copies, seed, 1, began + options.seconds);
            if (results->found)
                print_finding(copies[0]), findings++;
            results->found = false;
        }
        schedules += results->schedules;
        if (!results->complete)
            break;
    }
    printf("%-7s seeds from %llu on: all %s of %llu%s: %llu schedules in %.2f s\n", copies[0]->name,
           (unsigned long long)options.seed, fails_every() ? "calls" : "places",
           (unsigned long long)(seed - options.seed),
           results->complete ? "" : ", some of the next one", (unsigned long long)schedules, seconds() - began);
    return findings == 0;
}

static bool run_program(int index)
{
    const struct sim_program *copies[SIM_COPIES];
    double began = seconds(), cpu_began = cpu_seconds(), cpu;
    uint64_t seed = options.seed;

    for (int copy = 0; copy < SIM_COPIES; copy++)
        copies[copy] = &sim_copies[copy][index];
    if (options.shrink)
        return shrink(copies);
    if (fails_all())
        return run_failures(copies);
    memset(results, 0, sizeof *results);
    sim_choices_begin(options.choices != NULL ? SIM_MAKES_AGAIN : SIM_FORGETS);
    while (results->schedules < options.schedules && !results->found && !results->complete &&
           seconds() < began + options.seconds) {
        uint64_t most = options.schedules - results->schedules, before = results->schedules;

        run_child(copies, seed, most, began + options.seconds);
        seed += results->schedules - before;
    }
    cpu = cpu_seconds() - cpu_began;
    printf("%-6s seeds %llu..%llu: %llu schedules, %llu points, %llu switches in %.2f s, %.2f of a core "
           "(%.0f schedules and %.2f M points a second of it)%s", copies[0]->name, (unsigned long long)options.seed,
           (unsigned long long)(options.seed + results->schedules - 1), (unsigned long long)results->schedules,
           (unsigned long long)results->points, (unsigned long long)results->switches, seconds() - began, cpu,
           (double)results->schedules / cpu, (double)results->points / cpu / 1e6,
           results->complete ? ", all paths" : "");
    printf("\n");
    if (results->found)
        print_finding(copies[0]);
    return !results->found && (!options.replay || replays(copies));
}

/* ---- directories of names ---------------------------------------------------------------------------- */

#define DIRECTORIES "/dev/shm/boxcar-sim."

/* A run that is killed leaves its directory. */
static void remove_those_of_the_dead(void)
{
    glob_t found;

    if (glob(DIRECTORIES "*", 0, NULL, &found) != 0)
        return;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        long pid = strtol(found.gl_pathv[i] + strlen(DIRECTORIES), NULL, 10);

        if (pid <= 0 || kill((pid_t)pid, 0) == 0 || errno != ESRCH)
            continue;
        snprintf(sim_directory, sizeof sim_directory, DIRECTORIES "%ld", pid);
        sim_names_left();
        rmdir(sim_directory);
    }
    globfree(&found);
}

/* ---- the command ----------------------------------------------------------------------------------- */

static _Noreturn void usage(void)
{
    fprintf(stderr, "sim [--program NAME] [--seed N] [--schedules N] [--seconds S] [--trace] [--replay]\n"
                    "    [--shrink]            finds a shorter schedule with the finding of the seed\n"
                    "    [--choices LIST]      runs such a schedule\n"
                    "    [--relax ADDRESSES]   makes these accesses relaxed, and counts all that are not: orders.py\n"
                    "    [--long-stops]        workers are stopped for longer than calls may take\n"
                    "    [--fail all]          at each place a call that can fail does, in a schedule of its own\n"
                    "    [--fail every]        each call that can fail does, in a schedule of its own\n"
                    "    [--fail FUNCTION:N:ERROR]\n"
                    "    [--all PREEMPTIONS]   searches all paths with so many preemptions\n"
                    "A seed without a number of schedules runs that one. S is for all programs together.\n");
    exit(2);
}

static void read_options(int count, char **words)
{
    for (int i = 1; i < count; i++) {
        const char *word = words[i], *value = i + 1 < count ? words[i + 1] : NULL;

        if (strcmp(word, "--trace") == 0)
            options.trace = true;
        else if (strcmp(word, "--replay") == 0)
            options.replay = true;
        else if (strcmp(word, "--long-stops") == 0)
            sim_long_stops = true;
        else if (strcmp(word, "--shrink") == 0)
            options.shrink = true;
        else if (value == NULL)
            usage();
        else if (strcmp(word, "--fail") == 0)
            options.refusal = words[++i];
        else if (strcmp(word, "--choices") == 0)
            options.choices = words[++i];
        else if (strcmp(word, "--relax") == 0)
            options.relax = words[++i];
        else if (strcmp(word, "--program") == 0)
            options.program = words[++i];
        else if (strcmp(word, "--seed") == 0)
            options.seed = strtoull(words[++i], NULL, 0), options.has_seed = true;
        else if (strcmp(word, "--schedules") == 0)
            options.schedules = strtoull(words[++i], NULL, 0);
        else if (strcmp(word, "--seconds") == 0)
            options.seconds = strtod(words[++i], NULL);
        else if (strcmp(word, "--all") == 0)
            options.preemptions = (uint32_t)strtoul(words[++i], NULL, 0), options.all = true;
        else
            usage();
    }
    if (options.has_seed && options.schedules == UINT64_MAX)
        options.schedules = 1;
    if (!options.has_seed && !options.all && getrandom(&options.seed, 5, 0) != 5)
        options.seed = (uint64_t)time(NULL);
}

static bool is_wanted(int index)
{
    const struct sim_program *program = &sim_copies[0][index];

    if (fails_all() && !program->resets)            /* no call of it can fail */
        return false;
    return options.program == NULL || strcmp(options.program, program->name) == 0;
}

int main(int count, char **words)
{
    bool passed = true;
    int programs = 0;

    read_options(count, words);
    if (options.refusal != NULL && !fails_all() && !sim_refusals_read(options.refusal))
        usage();
    sim_choices_share();
    if (options.relax != NULL && !sim_relax(options.relax))
        usage();
    if (options.choices != NULL && !sim_choices_read(options.choices))
        usage();
    sim_statics_keep();
    results = mmap(NULL, sizeof *results, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (results == MAP_FAILED) {
        perror("sim: mmap");
        return 2;
    }
    remove_those_of_the_dead();
    snprintf(sim_directory, sizeof sim_directory, DIRECTORIES "%d", (int)getpid());
    if (mkdir(sim_directory, 0700) < 0) {
        perror(sim_directory);
        return 2;
    }
    for (int i = 0; sim_copies[0][i].name != NULL; i++)
        programs += is_wanted(i);
    options.seconds /= programs > 0 ? programs : 1;
    for (int i = 0; sim_copies[0][i].name != NULL; i++) {
        if (!is_wanted(i))
            continue;
        passed = run_program(i) && passed;
    }
    sim_names_left();
    rmdir(sim_directory);
    sim_print_orders();
    if (programs == 0)
        usage();
    printf(passed ? "ok nothing was found\n" : "not ok\n");
    return passed ? 0 : 1;
}
