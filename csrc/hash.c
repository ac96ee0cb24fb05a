#include "hash.h"

#include "wire.h"

#include <string.h>

#define FNV32_START UINT32_C(0x811c9dc5)
#define FNV32_PRIME UINT32_C(0x01000193)

/* The 128-bit prime is 2^88 + 0x13b. */
#define FNV128_START_HIGH UINT64_C(0x6c62272e07bb0142)
#define FNV128_START_LOW UINT64_C(0x62b821756295c58d)
#define FNV128_PRIME_LOW UINT64_C(0x13b)

uint32_t tk_fnv1a32(const uint8_t *data, size_t size)
{
    uint32_t h = FNV32_START;
    for (size_t i = 0; i < size; i++)
        h = (h ^ data[i]) * FNV32_PRIME;
    return h;
}

void tk_fnv1a128(const uint8_t *data, size_t size, uint8_t *out)
{
    uint64_t high = FNV128_START_HIGH, low = FNV128_START_LOW;
    for (size_t i = 0; i < size; i++) {
        low ^= data[i];
        /* low * 0x13b in two halves, to have the carry without 128-bit integers */
        uint64_t a = (low & 0xffffffff) * FNV128_PRIME_LOW;
        uint64_t b = (low >> 32) * FNV128_PRIME_LOW + (a >> 32);
        high = high * FNV128_PRIME_LOW + (low << 24) + (b >> 32);
        low = b << 32 | (a & 0xffffffff);
    }
    for (int i = 0; i < 8; i++) {
        out[i] = (uint8_t)(high >> (56 - 8 * i));
        out[8 + i] = (uint8_t)(low >> (56 - 8 * i));
    }
}

static uint32_t add(uint32_t h, uint8_t byte)
{
    return (h ^ byte) * FNV32_PRIME;
}

/* Hashes a byte of the JSON text as it stands in the dump: its decimal digits and the blank before it. */
static uint32_t add_number(uint32_t h, uint8_t byte)
{
    h = add(h, ' ');
    if (byte >= 100)
        h = add(h, (uint8_t)('0' + byte / 100));
    if (byte >= 10)
        h = add(h, (uint8_t)('0' + byte / 10 % 10));
    return add(h, (uint8_t)('0' + byte % 10));
}

static uint32_t add_numbers(uint32_t h, const char *text)
{
    for (; *text != '\0'; text++)
        h = add_number(h, (uint8_t)*text);
    return h;
}

static uint32_t add_escape(uint32_t h, uint8_t byte)
{
    static const char digits[] = "0123456789abcdef";
    switch (byte) {
    case '"':
        return add_numbers(h, "\\\"");
    case '\\':
        return add_numbers(h, "\\\\");
    case '\b':
        return add_numbers(h, "\\b");
    case '\f':
        return add_numbers(h, "\\f");
    case '\n':
        return add_numbers(h, "\\n");
    case '\r':
        return add_numbers(h, "\\r");
    case '\t':
        return add_numbers(h, "\\t");
    default:
        h = add_numbers(h, "\\u00");
        h = add_number(h, (uint8_t)digits[byte >> 4]);
        return add_number(h, (uint8_t)digits[byte & 15]);
    }
}

/* Hashes a string as Go's encoding/json writes it, quotes included. */
static uint32_t add_json_string(uint32_t h, const uint8_t *p, size_t n)
{
    h = add_number(h, '"');
    while (n > 0) {
        size_t step = tk_utf8_sequence(p, n);
        if (step == 0) {
            h = add_numbers(h, "\\ufffd");
            step = 1;
        } else if (step > 1) {
            if (step == 3 && p[0] == 0xe2 && p[1] == 0x80 && (p[2] == 0xa8 || p[2] == 0xa9)) {
                h = add_numbers(h, p[2] == 0xa8 ? "\\u2028" : "\\u2029");
            } else {
                for (size_t i = 0; i < step; i++)
                    h = add_number(h, p[i]);
            }
        } else if (p[0] < ' ' || memchr("\"\\<>&", p[0], 5) != NULL) {
            h = add_escape(h, p[0]);
        } else {
            h = add_number(h, p[0]);
        }
        p += step;
        n -= step;
    }
    return add_number(h, '"');
}

uint32_t tk_container_hash(const uint8_t *name, size_t name_size, const uint8_t *image, size_t image_size)
{
    /* The first number has no blank before it: begin behind its brace. */
    static const char start[] = "([]uint8)[123";
    uint32_t h = tk_fnv1a32((const uint8_t *)start, sizeof start - 1);
    h = add_numbers(h, "\"image\":");
    h = add_json_string(h, image, image_size);
    h = add_numbers(h, ",\"name\":");
    h = add_json_string(h, name, name_size);
    h = add_number(h, '}');
    return add(h, ']');
}

#ifdef TK_CHECKED
uint64_t tk_read_words(const uint8_t *data, size_t size)
{
    uint64_t sum = 0, word;
    for (; size >= sizeof word; size -= sizeof word, data += sizeof word) {
        memcpy(&word, data, sizeof word);
        sum += word;
    }
    for (; size > 0; size--)
        sum += *data++;
    return sum;
}
#endif
