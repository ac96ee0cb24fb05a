/* The container hash against one that builds the texts, and UTF-8 against a reader by code points. */
#include "../tests/support.h"

#include <string.h>

/* The character at p by the book, with its length in *step; -1 and 1 when there is none. */
static long character(const uint8_t *p, size_t n, size_t *step)
{
    static const long least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t length = p[0] < 0x80 ? 1 : p[0] >> 5 == 6 ? 2 : p[0] >> 4 == 14 ? 3 : p[0] >> 3 == 30 ? 4 : 0;
    *step = 1;
    if (length == 0 || length > n)
        return -1;
    long c = length == 1 ? p[0] : p[0] & (0x7f >> length);
    for (size_t i = 1; i < length; i++) {
        if (p[i] >> 6 != 2)
            return -1;
        c = c << 6 | (p[i] & 0x3f);
    }
    if (c < least[length] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
        return -1;
    *step = length;
    return c;
}

static size_t write_json(char *out, const uint8_t *p, size_t n)
{
    char *at = out;
    *at++ = '"';
    for (size_t i = 0, step; i < n; i += step) {
        long c = character(p + i, n - i, &step);
        if (c < 0)
            at += sprintf(at, "\\ufffd");
        else if (c == '"' || c == '\\')
            at += sprintf(at, "\\%c", (int)c);
        else if (c == '\b' || c == '\f' || c == '\n' || c == '\r' || c == '\t')
            at += sprintf(at, "\\%c", c == '\b' ? 'b' : c == '\f' ? 'f' : c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (c < 0x20 || c == '<' || c == '>' || c == '&' || c == 0x2028 || c == 0x2029)
            at += sprintf(at, "\\u%04lx", (unsigned long)c);
        else
            for (size_t j = 0; j < step; j++)
                *at++ = (char)p[i + j];
    }
    *at++ = '"';
    return (size_t)(at - out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    size_t name_size = data[0] < size - 1 ? data[0] : size - 1, image_size = size - 1 - name_size;
    const uint8_t *name = data + 1, *image = name + name_size;
    char *json = malloc(6 * size + 64), *dump = malloc(4 * (6 * size + 64) + 64);
    CHECK(json != NULL && dump != NULL);
    size_t n = (size_t)sprintf(json, "{\"image\":");
    n += write_json(json + n, image, image_size);
    n += (size_t)sprintf(json + n, ",\"name\":");
    n += write_json(json + n, name, name_size);
    json[n++] = '}';
    size_t m = (size_t)sprintf(dump, "([]uint8)[");
    for (size_t i = 0; i < n; i++)
        m += (size_t)sprintf(dump + m, i == 0 ? "%u" : " %u", (unsigned)(uint8_t)json[i]);
    dump[m++] = ']';
    CHECK(tk_container_hash(name, name_size, image, image_size) == tk_fnv1a32((const uint8_t *)dump, m));
    bool valid = true;
    for (size_t i = 0, step; i < size; i += step)
        valid &= character(data + i, size - i, &step) >= 0;
    CHECK(tk_is_utf8(data, size) == valid);
    free(json);
    free(dump);
    return 0;
}
