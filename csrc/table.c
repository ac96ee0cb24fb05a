#include "table.h"

#include "fast.h"

#include <stdlib.h>

/* A text kept in `room` inline bytes, or interned when it is longer. */
static tk_code keep_text(tk_table *t, tk_text text, uint8_t *bytes, size_t room, uint8_t *size)
{
    if (text.size <= room) {
        memcpy(bytes, text.data, text.size);
        *size = (uint8_t)text.size;
        return TK_OK;
    }
    uint32_t number;
    tk_code code = tk_intern_take(&t->intern, &t->mem, &t->seed, &text, 1, &number);
    if (code)
        return code;
    memcpy(bytes, &number, sizeof number);
    *size = TK_INTERNED;
    return TK_OK;
}

static tk_text kept_text(const tk_table *t, const uint8_t *bytes, uint8_t size)
{
    if (size != TK_INTERNED)
        return (tk_text){.data = bytes, .size = size};
    return tk_intern_text(&t->intern, tk_load32(bytes), 0);
}

static void drop_text(tk_table *t, const uint8_t *bytes, uint8_t size)
{
    if (size == TK_INTERNED)
        tk_intern_give(&t->intern, &t->mem, tk_load32(bytes));
}

tk_text tk_record_id(const tk_table *t, const tk_record *r)
{
    return kept_text(t, r->id, r->id_size);
}

tk_text tk_pod_uid(const tk_table *t, const tk_pod *p)
{
    return kept_text(t, p->uid, p->uid_size);
}

tk_table *tk_table_new(uint64_t seed)
{
    tk_table *t = calloc(1, sizeof *t);
    if (t == NULL)
        return NULL;
    t->mem.fail_after = -1;
    t->seed = tk_seed_from(seed);
    t->count_high = tk_best_count_high();
    t->epoch = 1;
    tk_pool_init(&t->records, sizeof(tk_record));
    tk_pool_init(&t->pods, sizeof(tk_pod));
    tk_intern_init(&t->intern);
    return t;
}

void tk_table_free(tk_table *t)
{
    if (t == NULL)
        return;
    tk_mem *mem = &t->mem;
    tk_pool_free(&t->records, mem);
    tk_index_free(&t->record_index, mem);
    tk_pool_free(&t->pods, mem);
    tk_index_free(&t->pod_index, mem);
    tk_intern_free(&t->intern, mem);
    tk_mem_free(mem, t->changed, 2 * (size_t)t->pods_capacity * sizeof *t->changed);
    tk_mem_free(mem, t->steps, t->step_capacity * sizeof *t->steps);
    tk_mem_free(mem, t->out.text.p, t->out.text.capacity);
    tk_mem_free(mem, t->out.ends.p, t->out.ends.capacity * sizeof(uint64_t));
    tk_mem_free(mem, t->out.numbers.p, t->out.numbers.capacity * sizeof(int64_t));
    tk_mem_free(mem, t->out.order.p, t->out.order.capacity * sizeof(uint32_t));
    free(t);
}

bool tk_is_record(const tk_table *t, uint32_t number, tk_text uid, tk_text id)
{
    if (number >= t->records.used_up)
        return false;
    const tk_record *r = tk_record_at(t, number);
    return r->pod != TK_NONE && tk_same_text(tk_record_id(t, r), id) &&
           tk_same_text(tk_pod_uid(t, tk_pod_at(t, r->pod)), uid);
}

uint32_t tk_find_record(const tk_table *t, tk_text uid, tk_text id, uint32_t hash)
{
    const tk_index *index = &t->record_index;
    if (index->used == 0)
        return TK_NONE;
    uint32_t mask = (uint32_t)((UINT64_C(1) << index->bits) - 1);
    for (uint32_t i = tk_index_home(index, hash); index->slots[i].value != 0; i = (i + 1) & mask)
        if (index->slots[i].hash == hash && tk_is_record(t, index->slots[i].value - 1, uid, id))
            return index->slots[i].value - 1;
    return TK_NONE;
}

uint32_t tk_find_pod(const tk_table *t, tk_text uid)
{
    const tk_index *index = &t->pod_index;
    if (index->used == 0)
        return TK_NONE;
    uint32_t mask = (uint32_t)((UINT64_C(1) << index->bits) - 1);
    uint32_t hash = tk_hash_text(&t->seed, uid);
    for (uint32_t i = tk_index_home(index, hash); index->slots[i].value != 0; i = (i + 1) & mask)
        if (index->slots[i].hash == hash &&
            tk_same_text(tk_pod_uid(t, tk_pod_at(t, index->slots[i].value - 1)), uid))
            return index->slots[i].value - 1;
    return TK_NONE;
}

/* Grows the two lists of pods, which lie one behind the other, so that every pod fits in each. */
static tk_code reserve_pod_lists(tk_table *t)
{
    if (t->pod_count < t->pods_capacity)
        return TK_OK;
    size_t old = t->pods_capacity, grown = old == 0 ? 64 : old + old / 4;
    if (grown >= TK_NONE)
        return TK_NOMEM;
    uint32_t *lists = tk_mem_resize(&t->mem, t->changed, 2 * old * sizeof *lists, 2 * grown * sizeof *lists);
    if (lists == NULL)
        return TK_NOMEM;
    t->changed = lists;
    t->scratch = lists + grown;
    t->pods_capacity = (uint32_t)grown;
    return TK_OK;
}

static void remove_pod(tk_table *t, uint32_t number)
{
    tk_pod *p = tk_pod_at(t, number);
    tk_text uid = tk_pod_uid(t, p);
    tk_index_remove(&t->pod_index, tk_hash_text(&t->seed, uid), number);
    drop_text(t, p->uid, p->uid_size);
    p->records = 0;
    tk_pool_give(&t->pods, number);
    t->pod_count--;
}

static tk_code add_pod(tk_table *t, tk_text uid, uint32_t *number)
{
    tk_code code = reserve_pod_lists(t);
    if (code == TK_OK)
        code = tk_index_reserve(&t->pod_index, &t->mem);
    if (code == TK_OK)
        code = tk_pool_take(&t->pods, &t->mem, number);
    if (code)
        return code;
    tk_pod *p = tk_pod_at(t, *number);
    *p = (tk_pod){.first = TK_NONE};
    if ((code = keep_text(t, uid, p->uid, TK_UID_INLINE, &p->uid_size)) != TK_OK) {
        tk_pool_give(&t->pods, *number);
        return code;
    }
    tk_index_add(&t->pod_index, tk_hash_text(&t->seed, uid), *number);
    t->pod_count++;
    return TK_OK;
}

static tk_code add_to_pod(tk_table *t, uint32_t pod, tk_text id, uint32_t hash, uint32_t *number)
{
    tk_code code = tk_index_reserve(&t->record_index, &t->mem);
    if (code == TK_OK)
        code = tk_pool_take(&t->records, &t->mem, number);
    if (code)
        return code;
    tk_record *r = tk_record_at(t, *number);
    *r = (tk_record){.pod = TK_NONE};
    if ((code = keep_text(t, id, r->id, TK_ID_INLINE, &r->id_size)) != TK_OK) {
        tk_pool_give(&t->records, *number);
        return code;
    }
    tk_pod *p = tk_pod_at(t, pod);
    r->pod = pod;
    r->next = p->first;
    p->first = *number;
    p->records++;
    tk_index_add(&t->record_index, hash, *number);
    return TK_OK;
}

tk_code tk_add_record(tk_table *t, tk_text uid, tk_text id, uint32_t hash, uint32_t *number)
{
    uint32_t pod = tk_find_pod(t, uid);
    tk_code code = TK_OK;
    if (pod == TK_NONE)
        code = add_pod(t, uid, &pod);
    if (code)
        return code;
    code = add_to_pod(t, pod, id, hash, number);
    if (code && tk_pod_at(t, pod)->records == 0)
        remove_pod(t, pod);
    return code;
}

/* Frees a record that is already out of its pod's list. */
static void free_record(tk_table *t, uint32_t number)
{
    tk_record *r = tk_record_at(t, number);
    tk_pod *p = tk_pod_at(t, r->pod);
    uint32_t hash = tk_hash_key(&t->seed, tk_pod_uid(t, p), tk_record_id(t, r));
    tk_index_remove(&t->record_index, hash, number);
    tk_intern_give(&t->intern, &t->mem, r->detail);
    if (TK_KIND(r->now) == TK_CONTAINER)
        tk_intern_give(&t->intern, &t->mem, r->extra);
    drop_text(t, r->id, r->id_size);
    p->records--;
    r->pod = TK_NONE;
    tk_pool_give(&t->records, number);
}

void tk_remove_first(tk_table *t, uint32_t pod)
{
    tk_pod *p = tk_pod_at(t, pod);
    uint32_t number = p->first;
    p->first = tk_record_at(t, number)->next;
    free_record(t, number);
    if (p->records == 0)
        remove_pod(t, pod);
}

void tk_remove_absent(tk_table *t, uint32_t pod)
{
    tk_pod *p = tk_pod_at(t, pod);
    uint32_t *link = &p->first;
    while (*link != TK_NONE) {
        tk_record *r = tk_record_at(t, *link);
        uint32_t number = *link;
        if (TK_STATE(r->old) == TK_ABSENT && TK_STATE(r->now) == TK_ABSENT) {
            *link = r->next;
            free_record(t, number);
        } else {
            link = &r->next;
        }
    }
    if (p->records == 0)
        remove_pod(t, pod);
}

static void note_difference(tk_table *t, uint32_t pod, bool before, bool after)
{
    tk_pod *p = tk_pod_at(t, pod);
    if (before == after)
        return;
    if (after && p->differing++ == 0) {
        p->changed_at = t->changed_count;
        t->changed[t->changed_count++] = pod;
    } else if (!after && --p->differing == 0) {
        uint32_t last = t->changed[--t->changed_count];
        t->changed[p->changed_at] = last;
        tk_pod_at(t, last)->changed_at = p->changed_at;
    }
}

/* Counts (+1) or uncounts (-1) what a record is now. */
static void count(tk_table *t, tk_pod *p, tk_status now, uint32_t one)
{
    if (TK_STATE(now) == TK_ABSENT)
        return;
    t->present += one;
    p->present += one;
    if (TK_KIND(now) == TK_CONTAINER) {
        t->containers[TK_STATE(now)] += one;
        p->running += TK_STATE(now) == TK_RUNNING ? one : 0;
    } else if (TK_STATE(now) == TK_RUNNING) {
        t->ready_pods -= p->ready > 0;
        p->ready += one;
        t->ready_pods += p->ready > 0;
    }
}

void tk_set_now(tk_table *t, tk_record *r, tk_status now)
{
    tk_pod *p = tk_pod_at(t, r->pod);
    bool before = tk_differs(r);
    count(t, p, r->now, (uint32_t)-1);
    r->now = now;
    count(t, p, r->now, 1);
    note_difference(t, r->pod, before, tk_differs(r));
}

void tk_set_old(tk_table *t, tk_record *r, tk_status old)
{
    bool before = tk_differs(r);
    r->old = old;
    note_difference(t, r->pod, before, tk_differs(r));
}
