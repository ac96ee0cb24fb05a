#include "support.h"

#include "fast.h"

#include <string.h>

static void check_pod(const tk_table *t, uint32_t number, tk_totals *sum, uint32_t *differing)
{
    const tk_pod *p = tk_pod_at(t, number);
    uint32_t records = 0, present = 0, ready = 0, running = 0, differ = 0;
    CHECK(tk_find_pod(t, tk_pod_uid(t, p)) == number);
    for (uint32_t i = p->first; i != TK_NONE; i = tk_record_at(t, i)->next) {
        const tk_record *r = tk_record_at(t, i);
        uint32_t hash = tk_hash_key(&t->seed, tk_pod_uid(t, p), tk_record_id(t, r));
        CHECK(r->pod == number);
        CHECK(tk_find_record(t, tk_pod_uid(t, p), tk_record_id(t, r), hash) == i);
        CHECK(TK_STATE(r->old) != TK_ABSENT || TK_STATE(r->now) != TK_ABSENT);
        records++;
        present += TK_STATE(r->now) != TK_ABSENT;
        differ += tk_differs(r);
        if (TK_KIND(r->now) == TK_CONTAINER) {
            sum->containers[TK_STATE(r->now)] += TK_STATE(r->now) != TK_ABSENT;
            running += TK_STATE(r->now) == TK_RUNNING;
        } else {
            ready += TK_STATE(r->now) == TK_RUNNING;
        }
    }
    CHECK(p->records == records && p->present == present && p->differing == differ);
    CHECK(p->ready == ready && p->running == running && !p->gathered);
    CHECK(differ == 0 || t->changed[p->changed_at] == number);
    sum->entries += present;
    sum->running_pods += ready > 0;
    *differing += differ > 0;
}

void check_consistency(const tk_table *t)
{
    tk_totals sum = {0}, told;
    uint32_t pods = 0, records = 0, differing = 0;
    for (uint32_t i = 0; i < t->pods.used_up; i++) {
        if (tk_pod_at(t, i)->records == 0)
            continue;
        check_pod(t, i, &sum, &differing);
        records += tk_pod_at(t, i)->records;
        pods++;
    }
    tk_count(t, &told);
    CHECK(pods == t->pod_count && pods == t->pod_index.used && records == t->record_index.used);
    CHECK(differing == t->changed_count);
    CHECK(sum.entries == told.entries && sum.running_pods == told.running_pods);
    CHECK(memcmp(sum.containers, told.containers, sizeof sum.containers) == 0);
    CHECK(t->step_count == 0);
}

static uint64_t mix(uint64_t h, const void *data, size_t size)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < size; i++)
        h = (h ^ p[i]) * UINT64_C(0x100000001b3);
    return h ^ size << 32;
}

static uint64_t mix_answer(uint64_t h, const tk_answer *answer)
{
    if (answer->text_count > 0) {
        h = mix(h, answer->ends, answer->text_count * sizeof *answer->ends);
        if (answer->ends[answer->text_count - 1] > 0)
            h = mix(h, answer->text, answer->ends[answer->text_count - 1]);
    }
    if (answer->number_count > 0)
        h = mix(h, answer->numbers, answer->number_count * sizeof *answer->numbers);
    return h;
}

uint64_t digest_of(tk_table *t)
{
    tk_totals totals;
    tk_answer answer;
    uint64_t h = UINT64_C(0xcbf29ce484222325), pods = 0;
    tk_count(t, &totals);
    totals.bytes = totals.allocations = 0;
    h = mix(h, totals.containers, sizeof totals.containers) ^ totals.entries ^ (uint64_t)totals.running_pods << 32;
    for (uint32_t i = 0; i < t->pods.used_up; i++) {
        const tk_pod *p = tk_pod_at(t, i);
        if (p->records == 0 || p->present == 0)
            continue;
        tk_text uid = tk_pod_uid(t, p);
        CHECK(tk_view_pod(t, uid.data, uid.size, &answer) == TK_OK);
        pods += mix_answer(mix(h, uid.data, uid.size), &answer); /* in whatever order */
    }
    return h ^ pods;
}

void put_varint(writer *w, uint64_t value)
{
    CHECK(sizeof w->bytes - w->size >= 10);
    for (; value > 0x7f; value >>= 7)
        w->bytes[w->size++] = (uint8_t)(value | 0x80);
    w->bytes[w->size++] = (uint8_t)value;
}

void put_number(writer *w, uint32_t field, uint64_t value)
{
    put_varint(w, (uint64_t)field << 3);
    put_varint(w, value);
}

void put_bytes(writer *w, uint32_t field, const void *data, size_t size)
{
    put_varint(w, (uint64_t)field << 3 | TK_LENGTH);
    put_varint(w, size);
    CHECK(sizeof w->bytes - w->size >= size);
    memcpy(w->bytes + w->size, data, size);
    w->size += size;
}

void put_string(writer *w, uint32_t field, const char *text)
{
    put_bytes(w, field, text, strlen(text));
}

void put_pair(writer *w, uint32_t field, const char *key, const char *value)
{
    static writer pair;
    pair.size = 0;
    put_string(&pair, 1, key);
    put_string(&pair, 2, value);
    put_bytes(w, field, pair.bytes, pair.size);
}

void put_container(writer *list, const char *id, const char *uid, uint64_t state, uint64_t created_at)
{
    static writer item, part;
    item.size = 0;
    put_string(&item, 1, id);
    put_string(&item, 2, "sandbox");
    part.size = 0;
    put_string(&part, 1, "name");
    put_bytes(&item, 3, part.bytes, part.size);
    part.size = 0;
    put_string(&part, 1, "image");
    put_bytes(&item, 4, part.bytes, part.size);
    put_number(&item, 6, state);
    put_number(&item, 7, created_at);
    put_pair(&item, 8, "io.kubernetes.pod.uid", uid);
    put_pair(&item, 9, "io.kubernetes.container.hash", "abc");
    put_bytes(list, 1, item.bytes, item.size);
}

void put_sandbox(writer *list, const char *id, const char *uid, uint64_t state, uint64_t created_at)
{
    static writer item, part;
    item.size = part.size = 0;
    put_string(&item, 1, id);
    put_string(&part, 1, "pod");
    put_string(&part, 2, uid);
    put_string(&part, 3, "namespace");
    put_bytes(&item, 2, part.bytes, part.size);
    put_number(&item, 3, state);
    put_number(&item, 4, created_at);
    put_bytes(list, 1, item.bytes, item.size);
}

void receive_exactly(tk_repeats *r, const uint8_t *bytes, size_t size, double now)
{
    uint8_t *given = malloc(size > 0 ? size : 1);
    CHECK(given != NULL);
    memcpy(given, bytes, size);
    tk_repeats_received(r, given, size, now);
    free(given);
}
