/* The seeded hash of the tables: multiply and fold (as wyhash does), 16 bytes a step.
 *
 * Its only duty is to spread keys that a stranger may have chosen; keys are always compared in full. All
 * constants come from the seed, so that none can be aimed at. */
#ifndef TK_KEYHASH_H
#define TK_KEYHASH_H

#include "wire.h"

#include <string.h>

typedef struct {
    uint64_t a, b, c;
} tk_seed;

static inline tk_seed tk_seed_from(uint64_t seed)
{
    uint64_t out[3];
    for (int i = 0; i < 3; i++) { /* splitmix64 */
        uint64_t z = seed += UINT64_C(0x9e3779b97f4a7c15);
        z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
        out[i] = z ^ z >> 31;
    }
    return (tk_seed){out[0], out[1], out[2] | 1};
}

static inline uint64_t tk_fold(uint64_t a, uint64_t b)
{
    __extension__ unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t tk_load64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* The same on every machine. */
static inline uint64_t tk_load_little64(const uint8_t *p)
{
    uint64_t v = tk_load64(p);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return v;
}

static inline uint32_t tk_load32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint64_t tk_hash_bytes(const tk_seed *seed, tk_text text)
{
    const uint8_t *p = text.data;
    size_t n = text.size;
    uint64_t h = seed->a ^ n, x, y;
    if (n >= 16) {
        for (; n > 16; n -= 16, p += 16)
            h = tk_fold(tk_load64(p) ^ seed->b, tk_load64(p + 8) ^ h);
        p -= 16 - n; /* the last 16 bytes, some perhaps a second time */
        x = tk_load64(p);
        y = tk_load64(p + 8);
    } else if (n >= 8) {
        x = tk_load64(p);
        y = tk_load64(p + n - 8);
    } else if (n >= 4) {
        x = tk_load32(p);
        y = tk_load32(p + n - 4);
    } else {
        x = n > 0 ? (uint64_t)p[0] << 16 | (uint64_t)p[n / 2] << 8 | p[n - 1] : 0;
        y = 0;
    }
    return tk_fold(x ^ seed->b, y ^ h);
}

/* Hash of a record's key. */
static inline uint32_t tk_hash_key(const tk_seed *seed, tk_text uid, tk_text id)
{
    return (uint32_t)(tk_fold(tk_hash_bytes(seed, uid) ^ seed->c, tk_hash_bytes(seed, id) ^ seed->b) >> 32);
}

static inline uint32_t tk_hash_text(const tk_seed *seed, tk_text text)
{
    return (uint32_t)(tk_fold(tk_hash_bytes(seed, text), seed->c) >> 32);
}

#endif
