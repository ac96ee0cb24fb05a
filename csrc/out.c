#include "out.h"

#include "order.h"

#define ROOM_KEPT 65536 /* bytes; larger room is given back when the next answer begins */

/* A growing array in the table's memory. */
static tk_code reserve(tk_mem *mem, tk_room *room, size_t more, size_t size)
{
    if (more <= room->capacity - room->used)
        return TK_OK;
    size_t grown = room->capacity == 0 ? 256 : 2 * room->capacity;
    while (grown - room->used < more)
        grown *= 2;
    void *p = tk_mem_resize(mem, room->p, room->capacity * size, grown * size);
    if (p == NULL)
        return TK_NOMEM;
    room->p = p;
    room->capacity = grown;
    return TK_OK;
}

static void clear(tk_mem *mem, tk_room *room, size_t size)
{
    room->used = 0;
    if (room->capacity * size > ROOM_KEPT) {
        tk_mem_free(mem, room->p, room->capacity * size);
        *room = (tk_room){0};
    }
}

static void begin(tk_table *t)
{
    clear(&t->mem, &t->out.text, 1);
    clear(&t->mem, &t->out.ends, sizeof(uint64_t));
    clear(&t->mem, &t->out.numbers, sizeof(int64_t));
    clear(&t->mem, &t->out.order, sizeof(uint32_t));
}

static tk_code put_text(tk_table *t, tk_text text)
{
    tk_room *bytes = &t->out.text, *ends = &t->out.ends;
    tk_code code = reserve(&t->mem, bytes, text.size, 1);
    if (code == TK_OK)
        code = reserve(&t->mem, ends, 1, sizeof(uint64_t));
    if (code)
        return code;
    if (text.size > 0)
        memcpy((uint8_t *)bytes->p + bytes->used, text.data, text.size);
    bytes->used += text.size;
    ((uint64_t *)ends->p)[ends->used++] = bytes->used;
    return TK_OK;
}

static tk_code put_number(tk_table *t, int64_t number)
{
    tk_room *numbers = &t->out.numbers;
    tk_code code = reserve(&t->mem, numbers, 1, sizeof number);
    if (code)
        return code;
    ((int64_t *)numbers->p)[numbers->used++] = number;
    return TK_OK;
}

/* Lists the pod's records that differ from what was committed, or that are there now, in the order wanted. */
static tk_code gather(tk_table *t, const tk_pod *p, tk_order order)
{
    tk_room *room = &t->out.order;
    room->used = 0;
    tk_code code = reserve(&t->mem, room, p->records, sizeof(uint32_t));
    if (code)
        return code;
    uint32_t *numbers = room->p;
    for (uint32_t i = p->first; i != TK_NONE; i = tk_record_at(t, i)->next) {
        const tk_record *r = tk_record_at(t, i);
        if (order == TK_BY_EVENT ? tk_differs(r) : TK_STATE(r->now) != TK_ABSENT)
            numbers[room->used++] = i;
    }
    tk_sort_records(t, numbers, room->used, order);
    return TK_OK;
}

/* The kubelet's generateEvents: at most two events for a record. */
static unsigned events_of(const tk_record *r, int64_t types[2])
{
    switch (tk_pleg_state(r->now)) {
    case TK_RUNNING:
        types[0] = TK_EVENT_STARTED;
        return 1;
    case TK_EXITED:
        types[0] = TK_EVENT_DIED;
        return 1;
    case TK_ABSENT:
        if (TK_STATE(r->old) == TK_EXITED) {
            types[0] = TK_EVENT_REMOVED;
            return 1;
        }
        types[0] = TK_EVENT_DIED;
        types[1] = TK_EVENT_REMOVED;
        return 2;
    default:
        types[0] = TK_EVENT_CHANGED;
        return 1;
    }
}

static tk_code put_change(tk_table *t, const tk_pod *p)
{
    tk_code code = put_text(t, tk_pod_uid(t, p));
    if (code == TK_OK)
        code = put_number(t, 0); /* the number of events, when it is known */
    if (code == TK_OK)
        code = gather(t, p, TK_BY_EVENT);
    if (code)
        return code;
    size_t count_at = t->out.numbers.used - 1;
    for (size_t i = 0; i < t->out.order.used; i++) {
        const tk_record *r = tk_record_at(t, ((const uint32_t *)t->out.order.p)[i]);
        int64_t types[2];
        unsigned n = events_of(r, types);
        for (unsigned j = 0; j < n && code == TK_OK; j++)
            if ((code = put_text(t, tk_record_id(t, r))) == TK_OK)
                code = put_number(t, types[j]);
        if (code)
            return code;
    }
    ((int64_t *)t->out.numbers.p)[count_at] = (int64_t)(t->out.numbers.used - count_at - 1);
    return TK_OK;
}

tk_code tk_tell_changes(tk_table *t, const tk_text *only)
{
    begin(t);
    if (only != NULL) {
        uint32_t pod = tk_find_pod(t, *only);
        if (pod == TK_NONE || tk_pod_at(t, pod)->differing == 0)
            return TK_OK;
        return put_change(t, tk_pod_at(t, pod));
    }
    for (uint32_t i = 0; i < t->changed_count; i++) {
        tk_code code = put_change(t, tk_pod_at(t, t->changed[i]));
        if (code)
            return code;
    }
    return TK_OK;
}

static tk_code put_container(tk_table *t, const tk_record *r)
{
    tk_code code = put_text(t, tk_record_id(t, r));
    if (code == TK_OK)
        code = put_text(t, tk_intern_text(&t->intern, r->extra, 0));
    for (uint32_t i = 0; i < 5 && code == TK_OK; i++)
        code = put_text(t, tk_intern_text(&t->intern, r->detail, i));
    if (code == TK_OK)
        code = put_number(t, TK_STATE(r->now));
    if (code == TK_OK)
        code = put_number(t, r->created_at);
    return code;
}

static tk_code put_sandbox(tk_table *t, const tk_record *r)
{
    tk_code code = put_text(t, tk_record_id(t, r));
    if (code == TK_OK)
        code = put_number(t, TK_STATE(r->now));
    if (code == TK_OK)
        code = put_number(t, r->created_at);
    if (code == TK_OK)
        code = put_number(t, r->extra);
    return code;
}

/* What stands before a pod's entries, which are in order already. */
static tk_code put_pod(tk_table *t, const uint32_t *numbers, size_t n)
{
    size_t containers = 0;
    while (containers < n && TK_KIND(tk_record_at(t, numbers[containers])->now) == TK_CONTAINER)
        containers++;
    bool sandbox = containers < n;
    const tk_record *named = tk_record_at(t, numbers[sandbox ? containers : 0]);
    uint32_t names = sandbox ? named->detail : named->extra, first = sandbox ? 0 : 1;
    tk_code code = put_text(t, tk_intern_text(&t->intern, names, first));
    if (code == TK_OK)
        code = put_text(t, tk_intern_text(&t->intern, names, first + 1));
    if (code == TK_OK)
        code = put_number(t, sandbox ? tk_record_at(t, numbers[n - 1])->created_at : 0);
    if (code == TK_OK)
        code = put_number(t, (int64_t)containers);
    if (code == TK_OK)
        code = put_number(t, (int64_t)(n - containers));
    return code;
}

tk_code tk_tell_pod(tk_table *t, tk_text uid)
{
    begin(t);
    uint32_t pod = tk_find_pod(t, uid);
    if (pod == TK_NONE || tk_pod_at(t, pod)->present == 0)
        return TK_OK;
    tk_code code = gather(t, tk_pod_at(t, pod), TK_BY_VIEW);
    if (code)
        return code;
    const uint32_t *numbers = t->out.order.p;
    size_t n = t->out.order.used;
    code = put_pod(t, numbers, n);
    for (size_t i = 0; i < n && code == TK_OK; i++) {
        const tk_record *r = tk_record_at(t, numbers[i]);
        code = TK_KIND(r->now) == TK_CONTAINER ? put_container(t, r) : put_sandbox(t, r);
    }
    return code;
}

tk_code tk_tell_pods(tk_table *t, bool running)
{
    begin(t);
    for (uint32_t i = 0; i < t->pods.used_up; i++) {
        const tk_pod *p = tk_pod_at(t, i);
        if (p->records == 0 || p->present == 0 || (running && p->ready == 0 && p->running == 0))
            continue;
        tk_code code = put_text(t, tk_pod_uid(t, p));
        if (code)
            return code;
    }
    return TK_OK;
}
