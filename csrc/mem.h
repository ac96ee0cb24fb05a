/* Memory of one table: counted, so that a table can tell its size, and able to fail on demand. */
#ifndef TK_MEM_H
#define TK_MEM_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    size_t bytes;         /* in use now */
    uint64_t allocations; /* successful ones since the table was made */
    int64_t fail_after;   /* tests: this many more succeed, then all fail; negative: never */
} tk_mem;

/* Resizes `p` (NULL when old_size is 0) to new_size bytes. NULL when there is no memory: `p` is as before. */
void *tk_mem_resize(tk_mem *mem, void *p, size_t old_size, size_t new_size);

void tk_mem_free(tk_mem *mem, void *p, size_t size);

#endif
