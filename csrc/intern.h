/* Texts that many records share (names, images), each list of texts kept once and counted.
 *
 * The same list gives the same number. Number 0 stands for "none": it reads as empty texts and is not counted. */
#ifndef TK_INTERN_H
#define TK_INTERN_H

#include "index.h"
#include "keyhash.h"
#include "pool.h"

#define TK_INTERN_MAX 5

typedef struct {
    tk_pool blobs; /* of pointers to what is kept */
    tk_index index;
} tk_intern;

void tk_intern_init(tk_intern *intern);
void tk_intern_free(tk_intern *intern, tk_mem *mem);
/* Takes a reference to the list of n (at most TK_INTERN_MAX) texts. */
tk_code tk_intern_take(tk_intern *intern, tk_mem *mem, const tk_seed *seed, const tk_text *texts, uint32_t n,
                       uint32_t *number);
void tk_intern_give(tk_intern *intern, tk_mem *mem, uint32_t number);
/* Text i of the list, empty beyond its end. */
tk_text tk_intern_text(const tk_intern *intern, uint32_t number, uint32_t i);

#endif
