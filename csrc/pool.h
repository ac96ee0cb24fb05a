/* Numbered items of one size that never move: segments of 256, freed items are used again. */
#ifndef TK_POOL_H
#define TK_POOL_H

#include "mem.h"
#include "wire.h"

#define TK_SEGMENT_BITS 8
#define TK_SEGMENT_ITEMS (1u << TK_SEGMENT_BITS)

typedef struct {
    uint8_t **segments;
    size_t item_size; /* at least 4: a free item's first bytes link the free ones */
    uint32_t segment_count;
    uint32_t used_up; /* numbers below were given out at least once */
    uint32_t free_head;
} tk_pool;

void tk_pool_init(tk_pool *pool, size_t item_size);
void tk_pool_free(tk_pool *pool, tk_mem *mem);
/* Gives out the number of an item; its bytes are undefined. */
tk_code tk_pool_take(tk_pool *pool, tk_mem *mem, uint32_t *number);
void tk_pool_give(tk_pool *pool, uint32_t number);

static inline void *tk_pool_at(const tk_pool *pool, uint32_t number, size_t item_size)
{
    return pool->segments[number >> TK_SEGMENT_BITS] + (number & (TK_SEGMENT_ITEMS - 1)) * item_size;
}

#endif
