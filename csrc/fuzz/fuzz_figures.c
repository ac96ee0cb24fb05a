/* A figure found in a text that ends where its memory does, against one found by going through it line by line
 * with what a C library has for numbers. */
#include "../tests/support.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

static const char *const LINES[] = {"", "\na ", "\nab", "\nsome "};
static const char *const FIELDS[] = {"", " ", "b=", "avg10="};

/* Where the figure's number begins in a text with a zero byte behind it; NULL if there is no such line. */
static const char *find(const tk_figure *f, const char *text, size_t size)
{
    const char *end = text + size;
    size_t line = strlen(f->line), field = strlen(f->field);
    if (line > 0) {
        bool found = false;
        for (const char *p = text; !found;) {
            found = (size_t)(end - p) >= line - 1 && memcmp(p, f->line + 1, line - 1) == 0;
            if (found) {
                text = p + line - 1;
                break;
            }
            while (p < end && *p != '\n')
                p++;
            if (p++ == end)
                return NULL;
        }
    }
    if (field == 0)
        return text;
    for (; (size_t)(end - text) >= field; text++) {
        if (memcmp(text, f->field, field) == 0)
            return text + field;
        if (*text == '\n')
            return NULL;
    }
    return NULL;
}

static bool read_slowly(const tk_figure *f, const char *p, uint64_t *value)
{
    char digits[600];
    size_t n = 0;
    if (f->kind == TK_NUMBER && strncmp(p, "max", 3) == 0 && strchr(" \n", p[3]) != NULL)
        return *value = UINT64_MAX, true;
    while (isdigit((unsigned char)*p))
        digits[n++] = *p++;
    if (n == 0)
        return false;
    if (f->kind == TK_HUNDREDTHS) {
        if (*p++ != '.' || !isdigit((unsigned char)p[0]) || !isdigit((unsigned char)p[1]))
            return false;
        digits[n++] = *p++;
        digits[n++] = *p++;
    }
    digits[n] = 0;
    errno = 0;
    *value = strtoull(digits, NULL, 10);
    return strchr(" \n", *p) != NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > 512)
        return 0;
    tk_figure f = {"", "", LINES[data[0] & 3], FIELDS[data[0] >> 2 & 3], data[0] >> 4 & 3, 0};
    data++, size--;
    uint8_t *given = malloc(size + 1); /* where ASan sees every byte too much */
    CHECK(given != NULL);
    given[0] = '\n';
    if (size > 0)
        memcpy(given + 1, data, size);
    uint64_t value = 1, expected = 0, lines = 0;
    int there = tk_find_figure(&f, given + 1, size, &value);
    for (size_t i = 0; i < size; i++)
        lines += data[i] == '\n';
    if (f.kind == TK_TEXT || f.kind == TK_LINES) {
        CHECK(there && value == (f.kind == TK_TEXT ? size : lines));
    } else if (size == 0 || memchr(data, 0, size) == NULL) { /* the slow one takes a zero byte for the end */
        char text[520];
        if (size > 0)
            memcpy(text, data, size);
        text[size] = 0;
        const char *p = find(&f, text, size);
        bool is = p != NULL && read_slowly(&f, p, &expected);
        CHECK(there == is && value == (is ? expected : 0));
    }
    free(given);
    return 0;
}
