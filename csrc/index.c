#include "index.h"

#include <string.h>

static uint32_t mask_of(const tk_index *index)
{
    return (uint32_t)((UINT64_C(1) << index->bits) - 1);
}

static void place(tk_index *index, tk_slot slot)
{
    uint32_t mask = mask_of(index), i = tk_index_home(index, slot.hash);
    while (index->slots[i].value != 0)
        i = (i + 1) & mask;
    index->slots[i] = slot;
}

tk_code tk_index_reserve(tk_index *index, tk_mem *mem)
{
    size_t old_count = index->bits == 0 ? 0 : (size_t)1 << index->bits;
    if (2 * ((size_t)index->used + 1) <= old_count)
        return TK_OK;
    if (index->bits == 31)
        return TK_NOMEM;
    tk_index grown = {.used = index->used, .bits = index->bits == 0 ? 6 : index->bits + 1};
    size_t count = (size_t)1 << grown.bits;
    grown.slots = tk_mem_resize(mem, NULL, 0, count * sizeof(tk_slot));
    if (grown.slots == NULL)
        return TK_NOMEM;
    memset(grown.slots, 0, count * sizeof(tk_slot));
    for (size_t i = 0; i < old_count; i++)
        if (index->slots[i].value != 0)
            place(&grown, index->slots[i]);
    tk_index_free(index, mem);
    *index = grown;
    return TK_OK;
}

void tk_index_add(tk_index *index, uint32_t hash, uint32_t number)
{
    place(index, (tk_slot){.hash = hash, .value = number + 1});
    index->used++;
}

void tk_index_remove(tk_index *index, uint32_t hash, uint32_t number)
{
    uint32_t mask = mask_of(index), hole = tk_index_home(index, hash);
    while (index->slots[hole].value != number + 1)
        hole = (hole + 1) & mask;
    /* Slots behind the hole move up unless that would put them before their home. */
    for (uint32_t i = (hole + 1) & mask; index->slots[i].value != 0; i = (i + 1) & mask) {
        uint32_t home = tk_index_home(index, index->slots[i].hash);
        if (((i - home) & mask) >= ((i - hole) & mask)) {
            index->slots[hole] = index->slots[i];
            hole = i;
        }
    }
    index->slots[hole].value = 0;
    index->used--;
}

void tk_index_free(tk_index *index, tk_mem *mem)
{
    if (index->slots != NULL)
        tk_mem_free(mem, index->slots, ((size_t)1 << index->bits) * sizeof(tk_slot));
    *index = (tk_index){0};
}
