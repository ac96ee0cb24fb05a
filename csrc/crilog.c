#include "crilog.h"

#include <stdbool.h>
#include <string.h>

#define NANO_DIGITS 9
#define SECONDS_PART 19                              /* 2006-01-02T15:04:05 */
#define LONGEST_STAMP (SECONDS_PART + 1 + NANO_DIGITS + 6 + 1) /* .000000000+00:00 and a blank */

typedef struct {
    const uint8_t *text; /* where the time begins */
    const uint8_t *zone; /* Z or +00:00 */
    int64_t seconds;     /* since 1970 */
    uint32_t nanos;
    bool utc;
} moment;

typedef struct {
    moment at;
    bool err; /* stderr, not stdout */
    const uint8_t *content;
    size_t size;
} line;

/* The number that `count` digits stand for; -1 if they are not digits. */
static int number(const uint8_t *p, int count)
{
    int value = 0;
    for (int i = 0; i < count; i++) {
        unsigned digit = (unsigned)p[i] - '0';
        if (digit > 9)
            return -1;
        value = value * 10 + (int)digit;
    }
    return value;
}

static int days_of_month(int year, int month)
{
    static const uint8_t days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    return days[month - 1] + (month == 2 && leap);
}

/* Days from 1970-01-01 to a day of the Gregorian calendar; years begin in March, leap days at their end. */
static int64_t days_since_1970(int year, int month, int day)
{
    year -= month <= 2;
    int64_t era = (year >= 0 ? year : year - 399) / 400;
    int of_era = (int)(year - era * 400);
    int of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

/* Reads the fraction behind the seconds, 1 to 9 digits, and returns what is behind it; NULL if there is none. */
static const uint8_t *read_fraction(const uint8_t *p, const uint8_t *end, uint32_t *nanos)
{
    uint32_t value = 0;
    int digits = 0;
    for (; p < end && (unsigned)*p - '0' <= 9; p++) {
        if (digits == NANO_DIGITS)
            return NULL;
        value = value * 10 + (uint32_t)(*p - '0');
        digits++;
    }
    if (digits == 0)
        return NULL;
    for (; digits < NANO_DIGITS; digits++)
        value *= 10;
    *nanos = value;
    return p;
}

/* Reads Z or +00:00 up to `end` and takes it from the seconds. */
static bool read_zone(moment *m, const uint8_t *p, const uint8_t *end)
{
    m->zone = p;
    if (end - p == 1 && *p == 'Z') {
        m->utc = true;
        return true;
    }
    if (end - p != 6 || (p[0] != '+' && p[0] != '-') || p[3] != ':')
        return false;
    int hours = number(p + 1, 2), minutes = number(p + 4, 2);
    if (hours < 0 || hours > 23 || minutes < 0 || minutes > 59)
        return false;
    int offset = (hours * 60 + minutes) * 60;
    m->utc = offset == 0;
    m->seconds -= p[0] == '+' ? offset : -offset;
    return true;
}

/* Reads a time of RFC 3339 that ends at `end`. */
static bool read_moment(moment *m, const uint8_t *p, const uint8_t *end)
{
    if (end - p < SECONDS_PART + 1 || p[4] != '-' || p[7] != '-' || p[10] != 'T' || p[13] != ':' || p[16] != ':')
        return false;
    int year = number(p, 4), month = number(p + 5, 2), day = number(p + 8, 2);
    int hour = number(p + 11, 2), minute = number(p + 14, 2), second = number(p + 17, 2);
    if (year < 0 || month < 1 || month > 12 || day < 1 || day > days_of_month(year, month))
        return false;
    if (hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 59)
        return false;
    m->text = p;
    m->seconds = days_since_1970(year, month, day) * 86400 + hour * 3600 + minute * 60 + second;
    m->nanos = 0;
    p += SECONDS_PART;
    if (*p == '.') {
        p = read_fraction(p + 1, end, &m->nanos);
        if (p == NULL)
            return false;
    }
    return read_zone(m, p, end);
}

/* Reads a line whose last byte is a newline. */
static bool read_line(line *l, const uint8_t *p, size_t size)
{
    const uint8_t *end = p + size, *blank = memchr(p, ' ', size);
    if (blank == NULL || !read_moment(&l->at, p, blank))
        return false;
    p = blank + 1;
    if (end - p < 7 || memcmp(p, "std", 3) != 0 || p[6] != ' ')
        return false;
    l->err = memcmp(p + 3, "err", 3) == 0;
    if (!l->err && memcmp(p + 3, "out", 3) != 0)
        return false;
    p += 7;
    blank = memchr(p, ' ', (size_t)(end - p));
    if (blank == NULL)
        return false;
    bool partial = p[0] == 'P' && (p[1] == ' ' || p[1] == ':');
    l->content = blank + 1;
    l->size = (size_t)(end - l->content) - partial;
    return true;
}

/* Writes the time in a fixed width with a blank behind it and returns its length. */
static size_t write_stamp(const moment *m, uint8_t *out)
{
    uint8_t *p = out;
    memcpy(p, m->text, SECONDS_PART);
    p += SECONDS_PART;
    *p = '.';
    uint32_t nanos = m->nanos;
    for (int i = NANO_DIGITS; i > 0; i--, nanos /= 10)
        p[i] = (uint8_t)('0' + nanos % 10);
    p += 1 + NANO_DIGITS;
    if (m->utc) {
        *p++ = 'Z';
    } else {
        memcpy(p, m->zone, 6);
        p += 6;
    }
    *p++ = ' ';
    return (size_t)(p - out);
}

static bool is_wanted(const tk_log_copy *c, const line *l)
{
    if (!(l->err ? c->want_stderr : c->want_stdout))
        return false;
    if (!c->has_since || l->at.seconds > c->since_seconds)
        return true;
    return l->at.seconds == c->since_seconds && (int64_t)l->at.nanos >= c->since_nanos;
}

/* Appends a line, as much of it as may be written; `out` has room for all of it. */
static void append(tk_log_copy *c, const line *l, uint8_t *out)
{
    uint8_t *p = out + c->written;
    size_t size = c->timestamps && c->new_line ? write_stamp(&l->at, p) : 0;
    memcpy(p + size, l->content, l->size);
    size += l->size;
    if (c->bytes_left >= 0) {
        if (size > (uint64_t)c->bytes_left)
            size = (size_t)c->bytes_left;
        c->bytes_left -= (int64_t)size;
    }
    c->written += size;
}

int tk_log_copy_lines(tk_log_copy *c, const uint8_t *in, size_t in_size, uint8_t *out, size_t out_size)
{
    c->consumed = c->written = 0;
    while (c->lines_left != 0 && c->bytes_left != 0) {
        const uint8_t *start = in + c->consumed;
        const uint8_t *newline = memchr(start, '\n', in_size - c->consumed);
        if (newline == NULL)
            return TK_LOG_MORE;
        size_t size = (size_t)(newline - start) + 1;
        line l;
        if (!read_line(&l, start, size))
            return TK_LOG_ODD;
        if (is_wanted(c, &l)) {
            if (out_size - c->written < l.size + LONGEST_STAMP)
                return TK_LOG_FULL;
            append(c, &l, out);
        }
        c->consumed += size;
        c->lines_left -= c->lines_left > 0;
        c->new_line = l.size == 0 || l.content[l.size - 1] == '\n';
    }
    return TK_LOG_DONE;
}
