#include "mem.h"

#include <stdlib.h>

void *tk_mem_resize(tk_mem *mem, void *p, size_t old_size, size_t new_size)
{
    if (mem->fail_after == 0)
        return NULL;
    void *q = realloc(p, new_size);
    if (q == NULL)
        return NULL;
    if (mem->fail_after > 0)
        mem->fail_after--;
    mem->bytes += new_size - old_size;
    mem->allocations++;
    return q;
}

void tk_mem_free(tk_mem *mem, void *p, size_t size)
{
    if (p == NULL)
        return;
    mem->bytes -= size;
    free(p);
}
