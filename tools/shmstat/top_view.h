/* SPDX-License-Identifier: MIT */
/*
 * shmstat top: the grid of characters that a terminal or a file gets.
 */
#ifndef TOOLS_STAT_TOP_VIEW_H
#define TOOLS_STAT_TOP_VIEW_H

#include "top_keys.h"

enum top_attribute {
    TOP_PLAIN,
    TOP_BOLD,
    TOP_DIM,
    TOP_TITLE,          /* of a column */
    TOP_SORT,           /* of the column by which rows are sorted */
    TOP_GOOD,
    TOP_CAUTION,
    TOP_ALARM,
};

#define TOP_WIDTH_MAX 400
#define TOP_HEIGHT_MAX 20000

/* Lines of exactly `width` characters and a terminator, blanks at the end; an attribute for each. */
struct top_grid {
    int width, height;
    char *text;
    unsigned char *attribute;           /* of width + 1 a line, as text is */
};

/* 0, -ENOMEM. Width and height are bounded. */
int top_grid_init(struct top_grid *grid, int width, int height);
void top_grid_free(struct top_grid *grid);
const char *top_grid_line(const struct top_grid *grid, int line);
const unsigned char *top_grid_attributes(const struct top_grid *grid, int line);
/* Draws the whole grid; bounds state->first. */
void top_render(struct top_model *model, struct top_state *state, struct top_grid *grid);

#endif
