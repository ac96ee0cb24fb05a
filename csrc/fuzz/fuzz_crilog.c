/* A piece of a log copied at once, against the same copied line by line with as little room as it needs: both
 * stop at the same place for the same reason, and neither reads or writes beyond what it was given. */
#include "../tests/support.h"

#include <string.h>

#define HEAD 6

static tk_log_copy wanted(const uint8_t *head)
{
    tk_log_copy c = {0};
    c.want_stdout = head[0] & 1;
    c.want_stderr = head[0] >> 1 & 1;
    c.timestamps = head[0] >> 2 & 1;
    c.new_line = head[0] >> 3 & 1;
    c.has_since = head[0] >> 4 & 1;
    c.since_seconds = 1475713029 + (int8_t)head[1];
    c.since_nanos = head[2] * 1000000;
    c.lines_left = (int8_t)head[3];
    c.bytes_left = (int8_t)head[4];
    return c;
}

/* Copies [in, in + size) to a buffer of exactly `room` bytes that it returns. */
static uint8_t *copy(tk_log_copy *c, const uint8_t *in, size_t size, size_t room, int *code)
{
    uint8_t *given = malloc(size), *taken = malloc(room); /* where ASan sees every byte too much */
    CHECK((given != NULL || size == 0) && (taken != NULL || room == 0));
    if (size > 0)
        memcpy(given, in, size);
    *code = tk_log_copy_lines(c, given, size, taken, room);
    CHECK(c->consumed <= size && c->written <= room);
    CHECK(c->consumed == 0 || in[c->consumed - 1] == '\n');
    CHECK((*code == TK_LOG_DONE) == (c->lines_left == 0 || c->bytes_left == 0));
    free(given);
    return taken;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < HEAD)
        return 0;
    tk_log_copy once = wanted(data), often = once;
    size_t small = data[5];
    data += HEAD;
    size -= HEAD;
    int code, step = TK_LOG_MORE;
    uint8_t *whole = copy(&once, data, size, 2 * size + 64, &code);
    CHECK(code != TK_LOG_FULL);
    uint64_t consumed = 0, written = 0;
    for (;;) {
        const uint8_t *newline = size > consumed ? memchr(data + consumed, '\n', size - consumed) : NULL;
        size_t line = newline == NULL ? size - consumed : (size_t)(newline - data - consumed) + 1;
        uint8_t *part = copy(&often, data + consumed, line, small, &step);
        if (step == TK_LOG_FULL) {
            CHECK(often.consumed == 0 && often.written == 0);
            free(part);
            part = copy(&often, data + consumed, line, line + 64, &step);
            CHECK(step != TK_LOG_FULL);
        }
        if (often.written > 0)
            CHECK(memcmp(part, whole + written, often.written) == 0);
        free(part);
        consumed += often.consumed;
        written += often.written;
        if (step != TK_LOG_MORE || often.consumed == 0)
            break;
    }
    CHECK(step == code && consumed == once.consumed && written == once.written);
    CHECK(once.lines_left == often.lines_left && once.bytes_left == often.bytes_left);
    CHECK(once.new_line == often.new_line);
    free(whole);
    return 0;
}
