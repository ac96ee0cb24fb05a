/* The order in which the kubelet lists a pod's records. */
#ifndef TK_ORDER_H
#define TK_ORDER_H

#include "table.h"

typedef enum {
    TK_BY_VIEW,  /* as they are now: containers, then sandboxes by attempt; each newest first, then by id */
    TK_BY_EVENT, /* the same, but first those that were committed, by what they were, then new ones */
} tk_order;

/* Sorts n record numbers. */
void tk_sort_records(const tk_table *t, uint32_t *numbers, size_t n, tk_order order);

#endif
