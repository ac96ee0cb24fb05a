#include "arena.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

struct tk_arenas {
    char *base; /* where huge pages may begin */
    size_t count;
    size_t mapped; /* bytes, from the struct on */
    uint8_t used[];
};

static size_t rounded_up(size_t size)
{
    return (size + TK_HUGE_PAGE - 1) & ~(TK_HUGE_PAGE - 1);
}

static void *system_pages(size_t size, int protection)
{
    void *p = mmap(NULL, size, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

tk_arenas *tk_arenas_new(size_t count)
{
    if (count > PTRDIFF_MAX / 2 / TK_ARENA_SIZE)
        return NULL;
    size_t head = rounded_up(sizeof(tk_arenas) + count), room = rounded_up(count * TK_ARENA_SIZE);
    /* What is not accessible counts as nobody's memory. */
    char *p = system_pages(head + room + TK_HUGE_PAGE, PROT_NONE);
    if (p == NULL)
        return NULL;
    tk_arenas *arenas = (tk_arenas *)p;
    if (mprotect(p, sizeof *arenas + count, PROT_READ | PROT_WRITE) != 0) {
        munmap(p, head + room + TK_HUGE_PAGE);
        return NULL;
    }
    arenas->base = (char *)rounded_up((uintptr_t)p + head);
    arenas->count = count;
    arenas->mapped = head + room + TK_HUGE_PAGE;
    return arenas;
}

void tk_arenas_free(tk_arenas *arenas)
{
    if (arenas != NULL)
        munmap(arenas, arenas->mapped);
}

void *tk_arena_alloc(void *context, size_t size)
{
    tk_arenas *arenas = context;
    /* The first that is free, so that they stay together. */
    uint8_t *slot = size == TK_ARENA_SIZE ? memchr(arenas->used, 0, arenas->count) : NULL;
    if (slot == NULL)
        return system_pages(size, PROT_READ | PROT_WRITE);
    char *p = arenas->base + (size_t)(slot - arenas->used) * TK_ARENA_SIZE;
    if (mprotect(p, TK_ARENA_SIZE, PROT_READ | PROT_WRITE) != 0)
        return NULL;
    *slot = 1;
    return p;
}

void tk_arena_free(void *context, void *p, size_t size)
{
    tk_arenas *arenas = context;
    uintptr_t offset = (uintptr_t)p - (uintptr_t)arenas->base;
    if (offset >= arenas->count * TK_ARENA_SIZE) {
        munmap(p, size);
        return;
    }
    size_t slot = offset / TK_ARENA_SIZE, first = slot & ~(size_t)1;
    arenas->used[slot] = 0;
    /* Half of a huge page would be no gain: it would have to be broken up. */
    if (!arenas->used[first] && (first + 1 == arenas->count || !arenas->used[first + 1]))
        madvise(arenas->base + first * TK_ARENA_SIZE, TK_HUGE_PAGE, MADV_DONTNEED);
}
