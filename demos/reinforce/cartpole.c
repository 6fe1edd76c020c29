/* SPDX-License-Identifier: MIT */
/*
 * The dynamics of CartPole-v1, and an observer's loop over poles. Run by each observer, on the thread of the pool that
 * answers "run_episode".
 *
 * The dynamics are in double, written term by term in the order of the reference. The file is compiled with
 * -ffp-contract=off and without fast-math, so a pole of 500 steps agrees with the reference numbers to the last bits. A
 * rearranged formula would be as good physics, but the system is chaotic: it would leave the reference after some
 * dozens of steps.
 */
#include "cartpole.h"

#include "demos/common/rng.h"

#include <math.h>

#define GRAVITY 9.8
#define FORCE 10.0
#define POLE_MASS 0.1
#define TOTAL_MASS 1.1
#define HALF_LENGTH 0.5
#define MASS_LENGTH 0.05            /* POLE_MASS * HALF_LENGTH */
#define TAU 0.02
#define PI 3.141592653589793
#define X_LIMIT 2.4
#define THETA_LIMIT (12 * 2 * PI / 360)

void cartpole_reset(struct cartpole *pole, uint64_t seed, int rank, uint64_t reset)
{
    uint64_t key = rng_at(rng_at(rng_at(seed, RNG_STARTS), (uint64_t)rank), reset);

    for (uint64_t i = 0; i < 4; i++)
        pole->state[i] = 0.1 * rng_unit(rng_at(key, i)) - 0.05;
    pole->steps = 0;
    pole->fell = false;
    pole->done = false;
}

bool cartpole_step(struct cartpole *pole, int action)
{
    double *s = pole->state;
    double x = s[0], x_dot = s[1], theta = s[2], theta_dot = s[3];
    double force = action == 1 ? FORCE : -FORCE;
    double c = cos(theta), si = sin(theta);
    double pushed = (force + MASS_LENGTH * theta_dot * theta_dot * si) / TOTAL_MASS;
    double theta_acc = (GRAVITY * si - c * pushed) /
                       (HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * c * c / TOTAL_MASS));
    double x_acc = pushed - MASS_LENGTH * theta_acc * c / TOTAL_MASS;

    s[0] = x + TAU * x_dot;
    s[1] = x_dot + TAU * x_acc;
    s[2] = theta + TAU * theta_dot;
    s[3] = theta_dot + TAU * theta_acc;
    pole->steps++;
    pole->fell = fabs(s[0]) > X_LIMIT || fabs(s[2]) > THETA_LIMIT;
    pole->done = pole->fell || pole->steps >= CARTPOLE_POLE_STEPS;
    return pole->done;
}

/* Sets returns[i] to the discounted sum of the rewards, 1 a step, from step i to the end of the pole. */
static void discount(float *returns, size_t count, double gamma)
{
    double sum = 0.0;

    for (size_t i = count; i-- > 0;) {
        sum = 1.0 + gamma * sum;
        returns[i] = (float)sum;
    }
}

int cartpole_play(struct cartpole_player *player, size_t steps, float *returns,
                  cartpole_choose_fn choose, void *context)
{
    struct cartpole pole;
    size_t pole_start = 0;
    int first_pole_steps = 0;

    cartpole_reset(&pole, player->seed, player->rank, player->resets++);
    for (size_t i = 0; i < steps; i++) {
        float state[4];

        for (int j = 0; j < 4; j++)
            state[j] = (float)pole.state[j];
        int action = choose(state, context);
        if (action < 0)
            return action;

        if (!cartpole_step(&pole, action) && i + 1 < steps)
            continue;
        discount(returns + pole_start, i + 1 - pole_start, player->gamma);
        if (pole_start == 0)
            first_pole_steps = pole.steps;
        pole_start = i + 1;
        if (pole_start < steps)
            cartpole_reset(&pole, player->seed, player->rank, player->resets++);
    }
    return first_pole_steps;
}
