#define _GNU_SOURCE
#include "figures.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

/* The kernel hands out lists a page at a time; a read of less than half of one was the last. */
#define SHORT_READ 2048

/* Opens base + directory + name; negative if that cannot be done. */
static int open_file(const tk_figure *f, const char *directory, size_t directory_size)
{
    char path[PATH_MAX];
    size_t base = strlen(f->base), name = strlen(f->name);
    if (base >= sizeof path || directory_size >= sizeof path || name >= sizeof path ||
        base + directory_size + name >= sizeof path)
        return -1;
    memcpy(path, f->base, base);
    memcpy(path + base, directory, directory_size);
    memcpy(path + base + directory_size, f->name, name + 1);
    int fd;
    do
        fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd < 0 && errno == EINTR);
    return fd;
}

/* Reads at most `most` bytes of a file; negative if it cannot be read. */
static ssize_t read_all(int fd, uint8_t *out, size_t most)
{
    size_t size = 0;
    while (size < most) {
        ssize_t n = read(fd, out + size, most - size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        size += (size_t)n;
        if (n < SHORT_READ)
            break;
    }
    return (ssize_t)size;
}

static bool is_digit(uint8_t c)
{
    return (unsigned)c - '0' <= 9;
}

static bool is_end(const uint8_t *p, const uint8_t *end)
{
    return p == end || *p == ' ' || *p == '\n';
}

/* Appends a digit; the largest number stays that. */
static uint64_t append(uint64_t value, uint8_t digit)
{
    uint64_t more;
    if (__builtin_mul_overflow(value, (uint64_t)10, &more) ||
        __builtin_add_overflow(more, (uint64_t)(digit - '0'), &more))
        return UINT64_MAX;
    return more;
}

/* Reads the number that begins at p. */
static bool read_number(const uint8_t *p, const uint8_t *end, bool hundredths, uint64_t *value)
{
    if (!hundredths && end - p >= 3 && memcmp(p, "max", 3) == 0 && is_end(p + 3, end)) {
        *value = UINT64_MAX;
        return true;
    }
    const uint8_t *start = p;
    uint64_t n = 0;
    for (; p < end && is_digit(*p); p++)
        n = append(n, *p);
    if (p == start)
        return false;
    if (hundredths) {
        if (end - p < 3 || p[0] != '.' || !is_digit(p[1]) || !is_digit(p[2]))
            return false;
        n = append(append(n, p[1]), p[2]);
        p += 3;
    }
    *value = n;
    return is_end(p, end);
}

int tk_find_figure(const tk_figure *f, const uint8_t *text, size_t size, uint64_t *value)
{
    const uint8_t *p = text, *end = text + size;
    *value = 0;
    if (f->kind == TK_TEXT) {
        *value = size;
        return 1;
    }
    if (f->kind == TK_LINES) {
        for (; (p = memchr(p, '\n', (size_t)(end - p))) != NULL; p++)
            ++*value;
        return 1;
    }
    size_t line = strlen(f->line), field = strlen(f->field);
    if (line > 0) {
        p = memmem(text - 1, size + 1, f->line, line);
        if (p == NULL)
            return 0;
        p += line;
    }
    if (field > 0) {
        const uint8_t *newline = memchr(p, '\n', (size_t)(end - p));
        p = memmem(p, (size_t)((newline == NULL ? end : newline) - p), f->field, field);
        if (p == NULL)
            return 0;
        p += field;
    }
    uint64_t found;
    if (!read_number(p, end, f->kind == TK_HUNDREDTHS, &found))
        return 0;
    *value = found;
    return 1;
}

size_t tk_read_figures(const tk_figure *figures, size_t count, const char *directories, size_t directory_count,
                       uint64_t *values, uint64_t *there, uint8_t *room, size_t room_size)
{
    size_t texts = 0, used = 0, done = 0;
    if (count > TK_FIGURES_MOST)
        return 0;
    for (size_t i = 0; i < count; i++)
        texts += figures[i].kind == TK_TEXT;
    for (; done < directory_count; done++) {
        if (room_size - used < (texts + 1) * (TK_FILE_MOST + 1))
            return done;
        size_t directory_size = strlen(directories);
        ssize_t size = -1;
        there[done] = 0;
        for (size_t i = 0; i < count; i++) {
            const tk_figure *f = &figures[i];
            uint8_t *text = room + used + 1;
            if (i == 0 || !f->same) {
                text[-1] = '\n';
                int fd = open_file(f, directories, directory_size);
                size = fd < 0 ? -1 : read_all(fd, text, TK_FILE_MOST);
                if (fd >= 0)
                    close(fd);
            }
            uint64_t *value = &values[done * count + i];
            *value = 0;
            if (size < 0 || !tk_find_figure(f, text, (size_t)size, value))
                continue;
            there[done] |= (uint64_t)1 << i;
            if (f->kind == TK_TEXT) {
                memmove(room + used, text, (size_t)size);
                used += (size_t)size;
                size = -1; /* a text is the last figure of its file */
            }
        }
        directories += directory_size + 1;
    }
    return done;
}
