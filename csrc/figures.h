/* Numbers out of the small text files in which the kernel tells about cgroups and processes, many in one call:
 * with Python, opening, reading and closing such a file costs twice what the kernel takes for it.
 * Twin: trio_kubelet/native/pure_figures.py. */
#ifndef TK_FIGURES_H
#define TK_FIGURES_H

#include <stddef.h>
#include <stdint.h>

#define TK_FILE_MOST 65536 /* bytes of a file that are looked at */
#define TK_FIGURES_MOST 64 /* of a directory; each has a bit */

enum {
    TK_NUMBER,     /* decimal digits, or `max` for the largest there is; larger ones are that too */
    TK_HUNDREDTHS, /* digits, a point, two digits: a hundred times that */
    TK_LINES,      /* how many lines the file has */
    TK_TEXT,       /* the whole file, put behind the texts before; the figure is its size */
};

typedef struct {
    const char *base;  /* stands before the directory in the file's path */
    const char *name;  /* stands behind it, slash and all */
    const char *line;  /* a newline and what the line begins with; "" for the first line */
    const char *field; /* what stands before the number, further on in that line; "" for nothing */
    int32_t kind;
    int32_t same; /* whether the file is that of the figure before */
} tk_figure;

/* Reads `count` figures of each directory, `directories` being `directory_count` texts that end in a zero byte.
 * values[d * count + i] is what figure i is in directory d and bit i of there[d] whether it is there: 0 and not
 * there with a file that cannot be read, a line that is missing, a number that is not one. Returns how many
 * directories are done: fewer than there are when `room` may be too small for the texts of the next one; it
 * needs TK_FILE_MOST + 1 for each text and as much again. Texts stand at its beginning, one behind the other. */
size_t tk_read_figures(const tk_figure *figures, size_t count, const char *directories, size_t directory_count,
                       uint64_t *values, uint64_t *there, uint8_t *room, size_t room_size);

/* What `tk_read_figures` makes of [text, text + size), before which there has to be a newline. */
int tk_find_figure(const tk_figure *figure, const uint8_t *text, size_t size, uint64_t *value);

#endif
