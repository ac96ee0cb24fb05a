#include "fast.h"

#include "keyhash.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define HIGH_BITS UINT64_C(0x8080808080808080)

static uint64_t count_high_words(const uint8_t *p, size_t n)
{
    uint64_t sum = 0;
    for (; n >= 8; n -= 8, p += 8)
        sum += ((tk_load64(p) >> 7 & UINT64_C(0x0101010101010101)) * UINT64_C(0x0101010101010101)) >> 56;
    for (; n > 0; n--, p++)
        sum += *p >> 7;
    return sum;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static uint64_t count_high_avx2(const uint8_t *p, size_t n)
{
    __m256i zero = _mm256_setzero_si256(), total = zero;
    while (n >= 32) {
        size_t rounds = n / 32 < 255 ? n / 32 : 255; /* the byte counters hold 255 */
        __m256i sum = zero;
        n -= rounds * 32;
        for (; rounds > 0; rounds--, p += 32)
            sum = _mm256_sub_epi8(sum, _mm256_cmpgt_epi8(zero, _mm256_loadu_si256((const __m256i *)p)));
        total = _mm256_add_epi64(total, _mm256_sad_epu8(sum, zero));
    }
    uint64_t parts[4];
    _mm256_storeu_si256((__m256i *)parts, total);
    return parts[0] + parts[1] + parts[2] + parts[3] + count_high_words(p, n);
}

__attribute__((target("avx512bw,popcnt"))) static uint64_t count_high_avx512(const uint8_t *p, size_t n)
{
    uint64_t sum = 0;
    for (; n >= 64; n -= 64, p += 64)
        sum += (uint64_t)_mm_popcnt_u64(_mm512_movepi8_mask(_mm512_loadu_si512(p)));
    __m512i rest = _mm512_maskz_loadu_epi8((UINT64_C(1) << n) - 1, p);
    return sum + (uint64_t)_mm_popcnt_u64(_mm512_movepi8_mask(rest));
}
#endif

tk_count_high *tk_best_count_high(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("popcnt"))
        return count_high_avx512;
    if (__builtin_cpu_supports("avx2"))
        return count_high_avx2;
#endif
    return count_high_words;
}

/* A cursor over an entry; `high` counts the bytes from 0x80 up that belong to tags and varints. */
typedef struct {
    const uint8_t *p;
    const uint8_t *end;
    uint64_t high;
} cursor;

/* Reads a length of up to three bytes at q. Returns the payload's start, NULL when it is longer or the payload
 * would run past `end`. Reads at most 3 bytes from q, which may lie at `end`. */
static inline const uint8_t *read_length(const uint8_t *q, const uint8_t *end, size_t *n, uint64_t *high)
{
    size_t v = *q++;
    if (v >= 0x80) {
        v = (v & 0x7f) | (size_t)*q++ << 7;
        *high += 1;
        if (v >= 0x80 << 7) {
            v = (v & 0x3fff) | (size_t)*q++ << 14;
            *high += 1;
            if (v >= 0x80 << 14)
                return NULL;
        }
    }
    if (q > end || v > (size_t)(end - q))
        return NULL;
    *n = v;
    return q;
}

/* When the next field is the length-delimited one with this one-byte tag, passes over it. False on a fault. */
static inline bool take_bytes(cursor *c, uint8_t tag, tk_text *text)
{
    if (c->p == c->end || *c->p != tag)
        return true;
    text->data = read_length(c->p + 1, c->end, &text->size, &c->high);
    if (text->data == NULL)
        return false;
    c->p = text->data + text->size;
    return true;
}

/* The value of a nine-byte varint, the length that moments in nanoseconds have: the continuation bits of its
 * first eight bytes are squeezed out in three steps. */
static inline uint64_t nine_byte_varint(uint64_t first, uint8_t last)
{
    uint64_t v = first & UINT64_C(0x7f7f7f7f7f7f7f7f);
    v = (v & UINT64_C(0x007f007f007f007f)) | (v & UINT64_C(0x7f007f007f007f00)) >> 1;
    v = (v & UINT64_C(0x00003fff00003fff)) | (v & UINT64_C(0x3fff00003fff0000)) >> 2;
    v = (v & UINT64_C(0x000000000fffffff)) | (v & UINT64_C(0x0fffffff00000000)) >> 4;
    return v | (uint64_t)last << 56;
}

static inline bool take_varint(cursor *c, uint8_t tag, uint64_t *value)
{
    if (c->p == c->end || *c->p != tag)
        return true;
    const uint8_t *q = c->p + 1;
    if (c->end - q >= 9 && q[8] < 0x80 && (tk_load64(q) & HIGH_BITS) == HIGH_BITS) {
        *value = nine_byte_varint(tk_load_little64(q), q[8]);
        c->high += 8;
        c->p = q + 9;
        return true;
    }
    uint64_t v = 0;
    for (unsigned i = 0; i < 9; i++) { /* a tenth byte is left to the exact reader */
        if (q + i >= c->end)
            return false;
        v |= (uint64_t)(q[i] & 0x7f) << (7 * i);
        if (q[i] < 0x80) {
            c->high += i;
            c->p = q + i + 1;
            *value = v;
            return true;
        }
    }
    return false;
}

/* Whether the 21 bytes at `key` are the pod's uid label. Reads them whatever the key's length: labels come in
 * any order, and a branch on the length would be mispredicted twice per container. */
static inline bool is_uid_label(const uint8_t *key)
{
    static const uint8_t label[] = "io.kubernetes.pod.uid";
    return ((tk_load64(key) ^ tk_load64(label)) | (tk_load64(key + 8) ^ tk_load64(label + 8)) |
            (tk_load64(key + 13) ^ tk_load64(label + 13))) == 0;
}

/* Passes over the map entries with this tag; `uid` (or NULL) takes the value of the pod's uid label. */
static inline bool take_map(cursor *c, uint8_t tag, tk_text *uid)
{
    while (c->p < c->end && *c->p == tag) {
        size_t n, value_size;
        const uint8_t *q = read_length(c->p + 1, c->end, &n, &c->high);
        if (q == NULL || n < 4)
            return false;
        const uint8_t *end = q + n;
        size_t key_size = q[1];
        if (q[0] != 0x0a || key_size >= 0x80 || key_size > n - 4 || q[2 + key_size] != 0x12)
            return false;
        const uint8_t *value = read_length(q + 3 + key_size, end, &value_size, &c->high);
        if (value == NULL || value + value_size != end)
            return false;
        if (uid != NULL) {
            bool found = (key_size == 21) & is_uid_label(q + 2);
            uid->data = found ? value : uid->data;
            uid->size = found ? value_size : uid->size;
        }
        c->p = end;
    }
    return true;
}

static inline bool read_container_metadata(tk_text message, uint64_t *high)
{
    cursor c = {.p = message.data, .end = message.data + message.size};
    tk_text name;
    uint64_t attempt;
    if (!take_bytes(&c, 0x0a, &name) || !take_varint(&c, 0x10, &attempt) || c.p != c.end)
        return false;
    *high += c.high;
    return true;
}

static inline bool read_image(tk_text message, uint64_t *high)
{
    cursor c = {.p = message.data, .end = message.data + message.size};
    tk_text text;
    if (!take_bytes(&c, 0x0a, &text) || !take_map(&c, 0x12, NULL))
        return false;
    /* user_specified_image, runtime_handler, image_ref: 18 to 20, with tags of two bytes */
    for (uint8_t tag = 0x92; tag <= 0xa2; tag += 8) {
        if (c.end - c.p >= 2 && c.p[0] == tag && c.p[1] == 0x01) {
            c.p++;
            c.high++;
            if (!take_bytes(&c, 0x01, &text))
                return false;
        }
    }
    *high += c.high;
    return c.p == c.end;
}

/* Passes over fields beyond the last one known here: a newer runtime's. */
static inline bool take_later_fields(cursor *c, uint8_t last)
{
    while (c->p < c->end) {
        uint8_t tag = *c->p;
        tk_text text;
        uint64_t value;
        if (tag >= 0x80 || tag >> 3 <= last)
            return false;
        if ((tag & 7) == TK_LENGTH ? !take_bytes(c, tag, &text)
                                   : (tag & 7) != TK_VARINT || !take_varint(c, tag, &value))
            return false;
    }
    return true;
}

static inline bool fast_container(cursor *c, tk_entry *e)
{
    tk_text text, metadata = {0}, image = {0};
    uint64_t state = 0, created_at = 0;
    if (!take_bytes(c, 0x0a, &e->id) || !take_bytes(c, 0x12, &text) || !take_bytes(c, 0x1a, &metadata) ||
        !take_bytes(c, 0x22, &image) || !take_bytes(c, 0x2a, &text) || !take_varint(c, 0x30, &state) ||
        !take_varint(c, 0x38, &created_at) || !take_map(c, 0x42, &e->uid) || !take_map(c, 0x4a, NULL) ||
        !take_bytes(c, 0x52, &text) || !take_later_fields(c, 10))
        return false;
    e->has_metadata = metadata.data != NULL;
    e->has_image = image.data != NULL;
    e->state = tk_state_of(TK_CONTAINER, (uint32_t)state);
    e->created_at = (int64_t)created_at;
    e->attempt = 0;
    return (!e->has_metadata || read_container_metadata(metadata, &c->high)) &&
           (!e->has_image || read_image(image, &c->high));
}

static inline bool fast_sandbox(cursor *c, tk_entry *e)
{
    tk_text text, metadata = {0};
    uint64_t state = 0, created_at = 0, attempt = 0;
    if (!take_bytes(c, 0x0a, &e->id) || !take_bytes(c, 0x12, &metadata) || !take_varint(c, 0x18, &state) ||
        !take_varint(c, 0x20, &created_at) || !take_map(c, 0x2a, NULL) || !take_map(c, 0x32, NULL) ||
        !take_bytes(c, 0x3a, &text) || !take_later_fields(c, 7))
        return false;
    e->has_metadata = metadata.data != NULL;
    if (e->has_metadata) {
        cursor m = {.p = metadata.data, .end = metadata.data + metadata.size};
        if (!take_bytes(&m, 0x0a, &text) || !take_bytes(&m, 0x12, &e->uid) || !take_bytes(&m, 0x1a, &text) ||
            !take_varint(&m, 0x20, &attempt) || m.p != m.end)
            return false;
        c->high += m.high;
    }
    e->has_image = false;
    e->state = tk_state_of(TK_SANDBOX, (uint32_t)state);
    e->created_at = (int64_t)created_at;
    e->attempt = (uint32_t)attempt;
    return true;
}

bool tk_fast_entry(const uint8_t **at, const uint8_t *end, tk_kind kind, tk_entry *e, uint64_t *high)
{
    const uint8_t *p = *at;
    size_t size;
    uint64_t more = 0;
    if (end - p < TK_FAST_SLACK || *p != 0x0a)
        return false;
    p = read_length(p + 1, end, &size, &more);
    if (p == NULL || (size_t)(end - p) < size + TK_FAST_SLACK)
        return false;
    cursor c = {.p = p, .end = p + size, .high = more};
    tk_text none = {.data = p, .size = 0};
    e->id = none;
    e->uid = none;
    e->item = (tk_text){.data = p, .size = size};
    e->kind = (uint8_t)kind;
    if (!(kind == TK_CONTAINER ? fast_container(&c, e) : fast_sandbox(&c, e)))
        return false;
    *at = c.end;
    *high += c.high;
    return true;
}
