/* SPDX-License-Identifier: MIT */
/*
 * The report of a run: JSON for programs, a figure. Run by the program's first process. demos/README.md lists the keys
 * of the JSON.
 */
#include "cp.h"
#include "demos/common/plot.h"

#include <stdlib.h>

double cp_us_per_step(const struct cp_result *result)
{
    return result->steps > 0 ? 1e6 * result->train_s / (double)result->steps : 0.0;
}

void cp_write_json(const struct cp_run *run, FILE *file)
{
    const struct cp_flags *flags = run->flags;
    const struct cp_result *result = run->result;

    fprintf(file, "{\n  \"world_size\": %d, \"log_interval\": %llu, \"gamma\": %.9g, \"seed\": %llu,\n",
            flags->world_size, (unsigned long long)flags->log_interval, flags->gamma, (unsigned long long)flags->seed);
    fprintf(file, "  \"max_episodes\": %llu, \"pack\": %s,\n", (unsigned long long)flags->max_episodes,
            flags->pack ? "true" : "false");
    fprintf(file, "  \"solved\": %s, \"episodes\": %llu, \"steps\": %llu, \"running_reward\": %.17g,\n",
            result->solved ? "true" : "false", (unsigned long long)result->episodes,
            (unsigned long long)result->steps, result->running_reward);
    fprintf(file, "  \"us_per_step\": %.9g, \"train_s\": %.9g, \"learn_s\": %.9g\n}\n", cp_us_per_step(result),
            result->train_s, result->learn_s);
}

int cp_plot(const struct cp_run *run)
{
    const struct cp_result *result = run->result;
    size_t count = result->point_count;
    int *x = calloc(count + 1, sizeof(*x));
    double *y = calloc(2 * count + 1, sizeof(*y));
    struct plot_line lines[] = { { "last reward", x, y, count }, { "average reward", x, y + count, count } };
    struct plot plot = { CP_PROGRAM, "CartPole-v1: one agent, the others observers", "episode", "reward", lines, 2 };
    int rc = -1;

    if (x == NULL || y == NULL || count == 0) {
        fputs(CP_PROGRAM ": there is nothing to draw\n", stderr);
        goto free_points;
    }
    for (size_t i = 0; i < count; i++) {
        x[i] = (int)result->points[i].episode;
        y[i] = result->points[i].last_reward;
        y[count + i] = result->points[i].running_reward;
    }
    rc = plot_draw(&plot, run->flags->plot);
free_points:
    free(x);
    free(y);
    return rc;
}
