/* An open-addressing index from a 32-bit hash to numbers, at most half full, with linear probing.
 *
 * The place of a slot follows from the top bits of the hash that is kept in it, so that growing and removing
 * need nothing but the slots. Equality of keys is the caller's: it walks the numbers with an equal hash. */
#ifndef TK_INDEX_H
#define TK_INDEX_H

#include "mem.h"
#include "wire.h"

typedef struct {
    uint32_t hash;
    uint32_t value; /* the number + 1; 0: empty */
} tk_slot;

typedef struct {
    tk_slot *slots;
    uint32_t used;
    uint32_t bits; /* there are 2^bits slots, none when 0 */
} tk_index;

#define TK_NONE UINT32_MAX

static inline uint32_t tk_index_home(const tk_index *index, uint32_t hash)
{
    return hash >> (32 - index->bits);
}

/* Makes room for one more. */
tk_code tk_index_reserve(tk_index *index, tk_mem *mem);
/* Needs room. */
void tk_index_add(tk_index *index, uint32_t hash, uint32_t number);
void tk_index_remove(tk_index *index, uint32_t hash, uint32_t number);
void tk_index_free(tk_index *index, tk_mem *mem);

#endif
