#include "order.h"

static uint32_t attempt_of(const tk_record *r)
{
    return TK_KIND(r->now) == TK_SANDBOX ? r->extra : 0;
}

static bool goes_before(const tk_table *t, uint32_t a, uint32_t b, tk_order order)
{
    const tk_record *x = tk_record_at(t, a), *y = tk_record_at(t, b);
    tk_kind x_kind = TK_KIND(x->now), y_kind = TK_KIND(y->now);
    if (order == TK_BY_EVENT) {
        bool x_new = TK_STATE(x->old) == TK_ABSENT, y_new = TK_STATE(y->old) == TK_ABSENT;
        if (x_new != y_new)
            return y_new;
        if (!x_new) {
            x_kind = TK_KIND(x->old);
            y_kind = TK_KIND(y->old);
        }
    }
    if (x_kind != y_kind)
        return x_kind == TK_CONTAINER;
    if (attempt_of(x) != attempt_of(y))
        return attempt_of(x) > attempt_of(y);
    if (x->created_at != y->created_at)
        return x->created_at > y->created_at;
    tk_text p = tk_record_id(t, x), q = tk_record_id(t, y);
    int difference = memcmp(p.data, q.data, p.size < q.size ? p.size : q.size);
    return difference != 0 ? difference < 0 : p.size < q.size;
}

static void sift_down(const tk_table *t, uint32_t *heap, size_t i, size_t n, tk_order order)
{
    uint32_t moved = heap[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= n)
            break;
        if (child + 1 < n && goes_before(t, heap[child], heap[child + 1], order))
            child++;
        if (!goes_before(t, moved, heap[child], order))
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = moved;
}

/* Heapsort: in place, and a pod with very many records costs no more than n log n. */
void tk_sort_records(const tk_table *t, uint32_t *numbers, size_t n, tk_order order)
{
    for (size_t i = n / 2; i > 0; i--)
        sift_down(t, numbers, i - 1, n, order);
    for (size_t left = n; left > 1; left--) {
        uint32_t last = numbers[0];
        numbers[0] = numbers[left - 1];
        numbers[left - 1] = last;
        sift_down(t, numbers, 0, left - 1, order);
    }
}
