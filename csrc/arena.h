/* Arenas in which the interpreter keeps its small objects, side by side.
 *
 * CPython asks the system for a mebibyte at a time, which comes from wherever there is room: between libraries,
 * between the stacks of threads. Side by side they fill huge pages, which the kernel makes of them when it is
 * asked to (trio_kubelet/common/memory.py). To an agent that is woken with empty caches each page it touches is
 * a walk through page tables, in a virtual machine through two of them. */
#ifndef TK_ARENA_H
#define TK_ARENA_H

#include <stddef.h>

#define TK_ARENA_SIZE ((size_t)1 << 20)
#define TK_HUGE_PAGE ((size_t)2 << 20)

typedef struct tk_arenas tk_arenas;

/* Room for `count` arenas: addresses only, without memory. NULL where there is none. */
tk_arenas *tk_arenas_new(size_t count);
/* All that is there, arenas in use too. */
void tk_arenas_free(tk_arenas *arenas);

/* The two functions of a PyObjectArenaAllocator, whose context is `arenas`; to be called by one thread at a time.
 * Where there is no room left, or the size is another one, memory comes from the system as without them. The
 * second also takes what the interpreter has had from the system before. */
void *tk_arena_alloc(void *arenas, size_t size);
void tk_arena_free(void *arenas, void *p, size_t size);

#endif
