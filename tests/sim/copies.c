/* SPDX-License-Identifier: MIT */
/*
 * The copies of the library: their programs, and their statics, which are set back before each schedule to what they
 * were when this program began. A process for each schedule would do too, but takes ten times as long: each page that
 * it touches is a fault.
 */
#include "sim.h"

#define STATICS(copy)                                                                               \
    extern unsigned char sim_data_begin_##copy[], sim_data_end_##copy[], sim_bss_begin_##copy[], sim_bss_end_##copy[]; \
    extern const struct sim_program sim_programs_##copy[];
STATICS(0)
STATICS(1)
STATICS(2)
STATICS(3)
STATICS(4)

static struct {
    unsigned char *begin, *end, *kept;
} statics[] = {
    { sim_data_begin_0, sim_data_end_0, NULL }, { sim_bss_begin_0, sim_bss_end_0, NULL },
    { sim_data_begin_1, sim_data_end_1, NULL }, { sim_bss_begin_1, sim_bss_end_1, NULL },
    { sim_data_begin_2, sim_data_end_2, NULL }, { sim_bss_begin_2, sim_bss_end_2, NULL },
    { sim_data_begin_3, sim_data_end_3, NULL }, { sim_bss_begin_3, sim_bss_end_3, NULL },
    { sim_data_begin_4, sim_data_end_4, NULL }, { sim_bss_begin_4, sim_bss_end_4, NULL },
};
const struct sim_program *const sim_copies[SIM_COPIES] = { sim_programs_0, sim_programs_1, sim_programs_2,
                                                           sim_programs_3, sim_programs_4 };

void sim_statics_keep(void)
{
    for (size_t i = 0; i < sizeof statics / sizeof statics[0]; i++) {
        size_t bytes = (size_t)(statics[i].end - statics[i].begin);

        statics[i].kept = malloc(bytes);
        memcpy(statics[i].kept, statics[i].begin, bytes);
    }
}

void sim_statics_reset_one(int copy)
{
    for (int i = 2 * copy; i < 2 * copy + 2; i++)
        memcpy(statics[i].begin, statics[i].kept, (size_t)(statics[i].end - statics[i].begin));
}

void sim_statics_reset(int copies)
{
    for (int copy = 0; copy < copies; copy++)
        sim_statics_reset_one(copy);
    signal(SIGBUS, SIG_DFL);            /* shm/guard.c chains what was there */
}
