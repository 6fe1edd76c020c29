/* SPDX-License-Identifier: MIT */
/*
 * The choices of one schedule: written down, made again, and left out one by one.
 *
 * A schedule is what it is without any choice, and a list of choices. Without one a fiber runs until it sleeps, ends or
 * has run for long, then the next one in the order of their numbers that can; stores stay in their buffers; nobody
 * dies, and what sim_choose answers is 0: mostly the shortest script. A choice belongs to a fiber, and to the
 * number of points that this fiber has come to: so it still fits when other fibers do less than before. What the
 * program has chosen belongs to the fiber and to how often it has asked.
 *
 * The shrinker leaves out halves of the list, then quarters, at last each single choice, again and again until no
 * choice can be left out ("delta debugging"): a list is kept if its schedule has the same finding, and with it go
 * the choices that no longer fit.
 */
#include "sim.h"

#define CHOICES 500000u
#define NO_FIBER 0xffff

static const char letters[SIM_KINDS + 1] = "hkbpvsnaeod";       /* in the order of enum sim_kind */

static struct list {
    enum sim_mode mode;
    uint32_t count;
    struct sim_choice all[CHOICES];
} *list;                                    /* shared with the child that runs the schedule */
static uint32_t asked_by_nobody;            /* as sim_fiber's */

void sim_choices_share(void)
{
    list = mmap(NULL, sizeof *list, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (list == MAP_FAILED) {
        perror("sim: memory of choices");
        exit(2);
    }
}

void sim_choices_begin(enum sim_mode mode)
{
    list->mode = mode;
    if (mode == SIM_WRITES)
        list->count = 0;
    for (uint32_t i = 0; i < list->count; i++)
        list->all[i].used = false;
}

enum sim_mode sim_mode(void)
{
    return list->mode;
}

void sim_choices_reset(void)
{
    asked_by_nobody = 0;
}

/* ---- written down --------------------------------------------------------------------------------- */

static uint32_t own_points(void)
{
    return sim_self == NULL ? 0 : (uint32_t)(sim_self->points + sim_schedule.points - sim_self->runs_since);
}

static uint16_t group(enum sim_kind kind)
{
    unsigned fiber = sim_self == NULL ? NO_FIBER : sim_self->id;

    return (uint16_t)(fiber << 1 | (kind == SIM_ASKED));
}

unsigned sim_nth(enum sim_kind kind)
{
    if (sim_self->chose_at != own_points())
        memset(sim_self->chose, 0, sizeof sim_self->chose);
    sim_self->chose_at = own_points();
    return sim_self->chose[kind]++;
}

static void write_down(enum sim_kind kind, unsigned nth, uint32_t at, uint32_t value)
{
    if (list->count == CHOICES)
        sim_fail("a schedule has more than %u choices", CHOICES);
    else
        list->all[list->count++] = (struct sim_choice){ .group = group(kind), .kind = (uint8_t)kind, .at = at,
                                                        .nth = (uint8_t)nth, .value = value };
}

void sim_chosen(enum sim_kind kind, unsigned nth, uint32_t value)
{
    if (list->mode == SIM_WRITES)
        write_down(kind, nth, own_points(), value);
}

static int by_group(const void *a, const void *b)
{
    const struct sim_choice *one = a, *other = b;

    return one->group != other->group ? (one->group < other->group ? -1 : 1) :
           one->order < other->order ? -1 : one->order > other->order;
}

/* Those of a fiber become neighbours, in the order in which it came to them. */
void sim_choices_sort(void)
{
    for (uint32_t i = 0; i < list->count; i++)
        list->all[i].order = i;
    qsort(list->all, list->count, sizeof list->all[0], by_group);
}

/* ---- made again ------------------------------------------------------------------------------------ */

/* The first of the group that is not before there. */
static uint32_t first_at(uint16_t of, uint32_t at)
{
    uint32_t low = 0, high = list->count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct sim_choice *choice = &list->all[middle];

        if (choice->group < of || (choice->group == of && choice->at < at))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct sim_choice *find(enum sim_kind kind, unsigned nth, uint32_t at)
{
    uint16_t of = group(kind);

    for (uint32_t i = first_at(of, at); i < list->count && list->all[i].group == of && list->all[i].at == at; i++)
        if (list->all[i].kind == kind && list->all[i].nth == (uint8_t)nth)
            return &list->all[i];
    return NULL;
}

bool sim_chosen_again(enum sim_kind kind, unsigned nth, uint32_t *value)
{
    struct sim_choice *choice = find(kind, nth, own_points());

    if (choice == NULL)
        return false;
    choice->used = true;
    *value = choice->value;
    return true;
}

const struct sim_choice *sim_chosen_here(void)
{
    uint16_t of = group(SIM_PREEMPTED);
    uint32_t at = own_points();

    for (uint32_t i = first_at(of, at); i < list->count && list->all[i].group == of && list->all[i].at == at; i++)
        if (list->all[i].kind <= SIM_PREEMPTED && !list->all[i].used) {
            list->all[i].used = true;
            return &list->all[i];
        }
    return NULL;
}

uint32_t sim_points_to_choice(void)
{
    uint16_t of = group(SIM_PREEMPTED);
    uint32_t at = own_points();

    for (uint32_t i = first_at(of, at + 1); i < list->count && list->all[i].group == of; i++)
        if (list->all[i].kind <= SIM_PREEMPTED)
            return list->all[i].at - at;
    return UINT32_MAX;
}

bool sim_chooses(enum sim_kind kind, uint32_t one_in)
{
    unsigned nth = sim_nth(kind);
    uint32_t value;

    if (list->mode == SIM_MAKES_AGAIN)
        return sim_chosen_again(kind, nth, &value);
    if (sim_draw(one_in) != 0)
        return false;
    sim_chosen(kind, nth, 1);
    return true;
}

uint32_t sim_asked(uint32_t most)
{
    uint32_t *asked = sim_self == NULL ? &asked_by_nobody : &sim_self->asked, value = 0;
    struct sim_choice *choice;

    if (list->mode == SIM_MAKES_AGAIN) {
        choice = find(SIM_ASKED, 0, *asked);
        value = choice != NULL ? choice->value % most : 0;
        if (choice != NULL)
            choice->used = true;
    } else {
        value = sim_draw(most);
        if (list->mode == SIM_WRITES && value != 0)
            write_down(SIM_ASKED, 0, *asked, value);
    }
    ++*asked;
    return value;
}

/* ---- as text --------------------------------------------------------------------------------------- */

void sim_choices_print(void)
{
    for (uint32_t i = 0; i < list->count; i++) {
        const struct sim_choice *choice = &list->all[i];

        printf("%s%u:%u%c%u", i > 0 ? "," : "", choice->group >> 1, choice->at, letters[choice->kind], choice->value);
        if (choice->nth > 0)
            printf("/%u", choice->nth);
    }
}

bool sim_choices_read(const char *text)
{
    unsigned fiber, at, value, nth;
    int bytes = 0, more;
    char letter;

    for (list->count = 0; sscanf(text, "%u:%u%c%u%n", &fiber, &at, &letter, &value, &bytes) == 4; text += bytes) {
        const char *kind = memchr(letters, letter, SIM_KINDS);

        if (kind == NULL || list->count == CHOICES)
            return false;
        nth = more = 0;
        if (sscanf(text + bytes, "/%u%n", &nth, &more) == 1)
            bytes += more;
        list->all[list->count++] = (struct sim_choice){ .group = (uint16_t)(fiber << 1 | (kind - letters == SIM_ASKED)),
                                                        .kind = (uint8_t)(kind - letters), .nth = (uint8_t)nth,
                                                        .at = at, .value = value };
        bytes += text[bytes] == ',';
    }
    sim_choices_sort();
    return *text == '\0';
}

/* ---- fewer ----------------------------------------------------------------------------------------- */

uint32_t sim_choices_count(void)
{
    return list->count;
}

static void leave_out_unused(void)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < list->count; i++)
        if (list->all[i].used)
            list->all[kept++] = list->all[i];
    list->count = kept;
}

/* Leaves out one part after the other. True: some could be. */
static bool leave_out_parts(uint32_t part, bool (*stays)(void))
{
    static struct sim_choice before[CHOICES];
    bool any = false;

    for (uint32_t end = list->count; end > 0;) {
        uint32_t count = list->count, from = end > part ? end - part : 0;

        memcpy(before, list->all, count * sizeof before[0]);
        memmove(&list->all[from], &list->all[end], (count - end) * sizeof before[0]);
        list->count = count - (end - from);
        if (stays()) {
            leave_out_unused();
            any = true;
            end = from < list->count ? from : list->count;
        } else {
            memcpy(list->all, before, count * sizeof before[0]);
            list->count = count;
            end = from;
        }
    }
    return any;
}

void sim_choices_shrink(bool (*stays)(void), bool (*is_late)(void))
{
    uint32_t part = list->count;

    while (part > 0 && !is_late()) {
        bool any = leave_out_parts(part, stays);

        part = part > list->count ? list->count : part;
        if (!any || part > 1)
            part /= 2;
    }
}
