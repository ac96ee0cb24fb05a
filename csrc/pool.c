#include "pool.h"

#include "index.h"

#include <string.h>

void tk_pool_init(tk_pool *pool, size_t item_size)
{
    *pool = (tk_pool){.item_size = item_size, .free_head = TK_NONE};
}

void tk_pool_free(tk_pool *pool, tk_mem *mem)
{
    for (uint32_t i = 0; i < pool->segment_count; i++)
        tk_mem_free(mem, pool->segments[i], TK_SEGMENT_ITEMS * pool->item_size);
    tk_mem_free(mem, pool->segments, pool->segment_count * sizeof *pool->segments);
    tk_pool_init(pool, pool->item_size);
}

static tk_code add_segment(tk_pool *pool, tk_mem *mem)
{
    size_t n = pool->segment_count;
    if (n == TK_NONE >> TK_SEGMENT_BITS)
        return TK_NOMEM;
    uint8_t *segment = tk_mem_resize(mem, NULL, 0, TK_SEGMENT_ITEMS * pool->item_size);
    if (segment == NULL)
        return TK_NOMEM;
    uint8_t **segments =
        tk_mem_resize(mem, pool->segments, n * sizeof *segments, (n + 1) * sizeof *segments);
    if (segments == NULL) {
        tk_mem_free(mem, segment, TK_SEGMENT_ITEMS * pool->item_size);
        return TK_NOMEM;
    }
    segments[n] = segment;
    pool->segments = segments;
    pool->segment_count++;
    return TK_OK;
}

tk_code tk_pool_take(tk_pool *pool, tk_mem *mem, uint32_t *number)
{
    if (pool->free_head != TK_NONE) {
        *number = pool->free_head;
        memcpy(&pool->free_head, tk_pool_at(pool, *number, pool->item_size), sizeof pool->free_head);
        return TK_OK;
    }
    if (pool->used_up >> TK_SEGMENT_BITS == pool->segment_count) {
        tk_code code = add_segment(pool, mem);
        if (code)
            return code;
    }
    *number = pool->used_up++;
    return TK_OK;
}

void tk_pool_give(tk_pool *pool, uint32_t number)
{
    memcpy(tk_pool_at(pool, number, pool->item_size), &pool->free_head, sizeof pool->free_head);
    pool->free_head = number;
}
